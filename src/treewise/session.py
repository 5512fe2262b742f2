"""What the loop works with, made from a recipe: policy, optimizer, sampler, problems, rewards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from treewise import models
from treewise.axes import Objective
from treewise.axes.conflicts import remarks
from treewise.axes.length_weight import LearnedPreference
from treewise.chat import Chat
from treewise.config import Recipe
from treewise.credit import credit
from treewise.device import compute_device, compute_dtype
from treewise.env import Environment
from treewise.env.load import load_environment
from treewise.optimizer import Optimizer
from treewise.packing import pack
from treewise.policy import Policy, causal_lm, flat_reason, head_is_plain, self_check
from treewise.problems import Given, held_out_problems, maker, open_supply
from treewise.reward import Reward
from treewise.reward.load import check_conditions, check_steps, load_reward, load_rewards
from treewise.sampler.hf import HFSampler, max_length
from treewise.sections import EnvSection, EvalSection
from treewise.supply import Supply
from treewise.text import inert
from treewise.types import Group, Problem, Trajectory


@dataclass(frozen=True, slots=True)
class Session:
    """Everything that lives as long as the run."""

    policy: Policy
    optimizer: Optimizer
    sampler: HFSampler
    tokenizer: Any
    chat: Chat
    objective: Objective
    rewards: tuple[Reward, ...]
    make: Callable[[Problem], Environment]
    env: EnvSection
    supply: Supply
    held_out: list[Problem]
    notes: list[str]

    @property
    def weights(self) -> dict[str, float]:
        """Of the reward functions, by name."""
        return {reward.name: reward.weight for reward in self.rewards}


def _load_trainable(recipe: Recipe, source: str) -> Any:
    """The float32 model to train: the recipe's, or a checkpoint's; with adapters if the recipe asks for them."""
    if not recipe.lora.rank:
        return models.load_model(source)
    try:
        import peft
    except ImportError:
        raise ValueError("lora.rank needs the package peft: pip install 'treewise[lora]'") from None
    base = models.load_model(recipe.model.path)
    if source != recipe.model.path:
        return peft.PeftModel.from_pretrained(base, source, is_trainable=True)
    alpha = 2 * recipe.lora.rank if recipe.lora.alpha is None else recipe.lora.alpha
    torch.manual_seed(recipe.train.seed)  # of the adapters' first values
    return peft.get_peft_model(
        base,
        peft.LoraConfig(
            r=recipe.lora.rank,
            lora_alpha=alpha,
            lora_dropout=0.0,
            target_modules="all-linear",
            task_type="CAUSAL_LM",
        ),
    )


def _probe_group(vocab_size: int) -> Group:
    """Three answers that share a prefix, for the comparison of tree and flat path."""
    generator = np.random.default_rng(0)
    prompt, stem, *tails = (generator.integers(0, vocab_size, size) for size in (6, 3, 4, 2, 3))
    trajectories = []
    for number, tail in enumerate(tails):
        tokens = np.concatenate([prompt, stem, tail])
        trajectories.append(
            Trajectory(tokens, np.arange(len(tokens)) >= len(prompt), np.zeros(len(tokens)), "", float(number), "eos")
        )
    return Group(Problem("self-check", ""), tuple(trajectories))


def build_policy(recipe: Recipe, objective: Objective, model: Any, vocab_size: int) -> tuple[Policy, str]:
    """Decide, with a check on the model, between tree and flat path. Also returns a line about that."""
    config = causal_lm(model).config
    vocab_size = min(vocab_size, config.get_text_config().vocab_size)
    reason = "model.attention = 'flat'" if recipe.model.attention == "flat" else flat_reason(config)
    if not reason and not head_is_plain(model):
        reason = "the model changes its logits behind the LM head"
    if reason and recipe.model.attention == "tree":
        raise ValueError(f"model.attention = 'tree' is not possible: {reason}")
    if recipe.model.gradient_checkpointing:
        causal_lm(model).gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()  # which switches gradient checkpointing on; there is no dropout
    reference = None
    if objective.kl_coef and not recipe.lora.rank:
        # Loaded in the compute precision rather than cast: a cast would also narrow the rotary frequencies.
        device = causal_lm(model).device
        reference = models.load_model(recipe.model.path, dtype=compute_dtype(recipe.model.dtype, device.type))
        reference.to(device).requires_grad_(False)
    policy = Policy(
        model, recipe.rollout.temperature, vocab_size, path="flat" if reason else "tree", reference=reference
    )
    if policy.path == "tree":
        batch = pack(credit([_probe_group(vocab_size)], Objective()), denominator=1.0, budget=10**6)[0]
        try:
            difference, relative = self_check(policy, batch, tolerance=2e-3)
        except Exception as error:  # whatever a model or a kernel compiler does
            if recipe.model.attention == "tree":
                raise
            policy.use_rows()
            reason = f"the check of tree attention failed: {inert(str(error))}"
        else:
            return policy, (
                f"attention: prefix tree (checked: log-probs within {difference:.0e}, gradient within {relative:.0e})"
            )
    return policy, f"attention: one row per answer ({reason})"


def _env_section(section: EnvSection, concurrency: int | None) -> EnvSection:
    """With as many environments at one time as they themselves would have, unless the recipe says how many."""
    if concurrency is None or "concurrency" in section.model_fields_set:
        return section
    return section.model_copy(update={"concurrency": min(concurrency, section.concurrency)})


def open_session(
    recipe: Recipe,
    *,
    source: str | Path | None = None,
    problems: Given | None = None,
    held_out: Given | None = None,
    reward: Callable[..., Any] | None = None,
    environment: Callable[..., Any] | None = None,
) -> Session:
    """Build all parts of a run.

    Args:
        source: model folder to start from, if it is not the recipe's (a checkpoint).
        problems, held_out: in place of `data.source` and `eval.source`: `Problem`s, whose prompts are used as they
            are, or dicts with the columns of a data file, which get the recipe's system message and template.
        reward: a function in place of the recipe's rewards.
        environment: a class in place of the recipe's environment and rewards.
    """
    from transformers.utils import logging

    logging.disable_progress_bar()
    tokenizer = models.load_tokenizer(recipe.model.path)
    objective = recipe.objective.resolve(max_new_tokens=recipe.rollout.max_new_tokens)
    if reward is not None:
        rewards: tuple[Reward, ...] = (load_reward(reward),)
    else:
        items = recipe.reward if environment is None else ()
        rewards = load_rewards(items)
    if environment is None and recipe.env.name is None and recipe.env != EnvSection():
        raise ValueError("the env section has no effect without an environment: set env.name, or pass environment=")
    env = load_environment(environment or recipe.env.name, options=recipe.env.options, weights=recipe.env.weights)
    rewards += tuple(Reward(name, None, weight) for name, weight in env.weights.items())
    if not any(item.weight for item in rewards):
        raise ValueError(
            f"every reward has weight 0 ({', '.join(item.name for item in rewards) or 'there is none'}), so nothing "
            "could be learned; add a [[reward]] that judges the last reply, or set env.weights"
        )
    played = environment is not None or recipe.env.name is not None
    check_steps(rewards, advantage=objective.name("advantage"), separator=recipe.rollout.step_separator, played=played)
    device = compute_device(recipe.model.device)
    model = _load_trainable(recipe, str(source or recipe.model.path)).to(device)
    chat = Chat(
        tokenizer,
        model_eos=causal_lm(model).generation_config.eos_token_id,
        template_options=recipe.data.template_options,
    )
    chat.check_stop(recipe.rollout.stop)
    rows = causal_lm(model).get_input_embeddings().num_embeddings
    if chat.vocab_size > rows and max(tokenizer.get_vocab().values()) >= rows:
        raise ValueError(f"the tokenizer has ids up to {chat.vocab_size - 1}, the model has embeddings for {rows} only")
    policy, note = build_policy(recipe, objective, model, chat.vocab_size)
    notes = [f"objective: {objective}", note]
    notes += remarks(objective, updates=recipe.train.updates_per_batch * recipe.train.minibatches)
    room = max_length(causal_lm(model).config.get_text_config(decoder=True))
    if problems is None and not recipe.data.sources:
        raise ValueError("there are no problems to learn from: set data.source (or pass problems= in Python)")
    make = maker(recipe, chat, room=room, played=played, check=env.check)
    tests: list[Problem] = []
    about_tests: list[str] = []
    # The recipe's held-out problems belong to the recipe's problems.
    if held_out is not None or (problems is None and recipe.eval.source is not None):
        tests, note = held_out_problems(held_out, recipe.eval, recipe, make)
        about_tests = [f"held out: {note}"]
    elif recipe.eval.source is not None:
        about_tests = ["no evaluation: eval.source belongs to data.source, which problems= replaces; pass held_out="]
    elif recipe.eval != EvalSection():
        raise ValueError("the eval section has no effect without held-out problems: set eval.source, or pass held_out=")
    supply, about = open_supply(problems, recipe, make, tests)
    first = supply.problems[0]
    try:
        opened = env.make(first)
    except Exception as error:  # an environment may fail in any way
        raise ValueError(f"can't make the environment of problem {first.id!r}: {inert(str(error))}") from error
    notes += [*about, *getattr(opened, "notes", []), *about_tests]
    check_conditions(rewards, [*supply.problems, *tests], whole=all(deck.whole for deck in supply.decks))
    if recipe.curriculum.score not in (None, *(reward.name for reward in rewards)):
        raise ValueError(
            f"curriculum.score = {recipe.curriculum.score!r} is none of the rewards: "
            f"{', '.join(reward.name for reward in rewards)}"
        )
    section = recipe.optimizer
    dtype = compute_dtype(recipe.model.dtype, device)
    optimizer = Optimizer(
        policy.model,
        compute_dtype=dtype,
        learning_rate=section.learning_rate,
        betas=(section.beta1, section.beta2),
        weight_decay=section.weight_decay,
        max_grad_norm=section.max_grad_norm,
        schedule=section.schedule,
        warmup=section.warmup_steps,
        total=recipe.train.steps * recipe.train.updates_per_batch * recipe.train.minibatches,
        preference=objective.length_weight if isinstance(objective.length_weight, LearnedPreference) else None,
    )
    sampler = HFSampler(
        policy.model,
        end_ids=chat.end_ids,
        vocab_size=policy.vocab_size,
        decode=chat.decode,
        max_rows=recipe.rollout.max_rows,
    )
    notes.append(f"compute in {str(dtype).removeprefix('torch.')}, master weights in float32")
    return Session(
        policy=policy,
        optimizer=optimizer,
        sampler=sampler,
        tokenizer=tokenizer,
        chat=chat,
        objective=objective,
        rewards=rewards,
        make=env.make,
        env=_env_section(recipe.env, getattr(opened, "concurrency", None)),
        supply=supply,
        held_out=tests,
        notes=notes,
    )
