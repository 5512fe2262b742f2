"""Losses and gradients of TRL's own `GRPOTrainer`, as the golden file that treewise is compared with.

    pip install -e '.[trl]'
    python scripts/golden_trl.py          # writes tests/golden/trl_1.16.json

Nothing of TRL's loss is copied here: its trainer is built around a tiny model, its `rollout_func` hook
replays the batch below, and `_generate_and_score_completions` and `compute_loss` do the rest.

How TRL is called so that its definitions and ours are the same one:

    grpo        mean over sequences in a micro-batch ÷ accumulation steps: micro-batches of equal size
    dr_grpo     the same, ÷ max_completion_length: equal micro-batches, no reward scaling
    dapo        `num_items_in_batch` counts the generation batch, so that is one optimizer step here
    bnpo        mean over the tokens of a micro-batch: one micro-batch
    lambda_grpo dapo with the advantages a/|λ| per token, which TRL accepts from subclasses; β = 0, because
                TRL would leave the KL term unweighted
    β ≠ 0       `use_bias_correction_kl = False`: k3 itself; TRL's default multiplies it by the ratio

The first part of the file is about log-probs (float64 leaves in the place of the model's, loss and
∂loss/∂logprob); the second about a Llama whose weights are a formula (loss and every parameter's gradient).
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

VERSION = "1.16"
GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden" / f"trl_{VERSION}.json"
GROUP_SIZE = 4
VOCABULARY = 48

# Three groups of four: ragged answers, duplicates, strict prefixes, environment tokens (mask 0), and a
# group whose rewards are all equal. The prompts' lengths differ, so TRL pads them on the left.
PROMPTS = [[5, 6, 7], [8, 9], [5, 6, 7, 10, 11]]
COMPLETIONS = [
    [[12, 13, 14], [12, 13, 15, 16], [20], [12, 13, 14]],
    [[17, 18], [17, 18, 30, 31, 19], [21, 22, 23, 24, 25, 26], [17, 18, 30, 32, 19]],
    [[27, 28, 29], [27, 28], [33, 34, 35, 36], [27]],
]
MASKS = [
    [[1, 1, 1], [1, 1, 1, 1], [1], [1, 1, 1]],
    [[1, 1], [1, 1, 0, 0, 1], [1, 1, 1, 1, 1, 1], [1, 1, 0, 0, 1]],
    [[1, 1, 1], [1, 1], [1, 0, 1, 1], [1]],
]
REWARDS: list[list[float | None]] = [[0.0, 1.0, 0.0, 0.5], [1.0, 0.0, 0.25, 1.0], [0.5, 0.5, 0.5, 0.5]]
MISSING: list[list[float | None]] = [[1.0, None, 1.0, 0.0], [1.0, None, None, None], [0.95, 0.95, 0.95, 0.95]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """How TRL is called. `old` is `same` for TRL's own on-policy ratio of 1, `given` for other log-probs."""

    name: str
    loss_type: str
    old: str
    beta: float = 0.0
    epsilon: float = 0.2
    epsilon_high: float = 0.2
    scale_rewards: str = "group"
    max_completion_length: int = 9
    micro_batches: int = 1
    weighted: bool = False
    missing: bool = False


def _cases() -> list[Case]:
    kinds: list[dict[str, Any]] = [
        {"name": "grpo", "loss_type": "grpo"},
        {"name": "dr_grpo", "loss_type": "dr_grpo", "scale_rewards": "none"},
        {"name": "dapo", "loss_type": "dapo", "epsilon_high": 0.28},
        {"name": "bnpo", "loss_type": "bnpo"},
    ]
    cases = [
        Case(**{**kind, "name": f"{kind['name']} old={old} beta={beta}"}, old=old, beta=beta)
        for kind in kinds
        for old in ("same", "given")
        for beta in (0.0, 0.04)
    ]
    cases += [
        Case(**{**kind, "name": f"{kind['name']} in 3 micro-batches"}, old="given", beta=0.04, micro_batches=3)
        for kind in kinds[:3]
    ]
    cases += [
        Case(name=f"lambda_grpo old={old}", loss_type="dapo", old=old, weighted=True) for old in ("same", "given")
    ]
    cases.append(Case(name="dapo without some verdicts", loss_type="dapo", old="given", missing=True))
    return cases


CASES = _cases()
MODEL_CASES = [case for case in CASES if case.old == "given" and case.micro_batches == 1 and not case.missing]
TEMPERATURE = 0.7  # of the model cases
REFERENCE_SHIFT = 0.05  # the reference of the model cases is llama(0.05)


def sizes() -> list[list[int]]:
    """|λ| of every completion token, by comparing prefixes (and their masks) one by one."""
    counted = []
    for completions, masks in zip(COMPLETIONS, MASKS, strict=True):
        rows = [list(zip(c, m, strict=True)) for c, m in zip(completions, masks, strict=True)]
        for row in rows:
            counted.append([sum(other[: t + 1] == row[: t + 1] for other in rows) for t in range(len(row))])
    return counted


def logprobs(seed: int, low: float, high: float) -> list[list[float]]:
    """Numbers to stand for log-probs, one per completion token, rounded so that JSON holds them exactly."""
    generator = np.random.default_rng(seed)
    return [[round(float(x), 4) for x in generator.uniform(low, high, len(c))] for g in COMPLETIONS for c in g]


def perturbed(rows: list[list[float]], seed: int, width: float) -> list[list[float]]:
    """`rows` plus uniform noise in ±width: with 0.5 the ratios leave the trust region on both sides."""
    generator = np.random.default_rng(seed)
    return [[round(x + float(generator.uniform(-width, width)), 4) for x in row] for row in rows]


def llama(shift: float = 0.0) -> Any:
    """A float32 Llama whose weights are the sine of (index + `shift`), which any machine can rebuild."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        eos_token_id=1,
        pad_token_id=0,
        bos_token_id=None,
    )
    model = LlamaForCausalLM(config).float()
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            wave = torch.sin(torch.arange(parameter.numel(), dtype=torch.float64) * 0.37 + number + shift)
            base = 1.0 if parameter.ndim == 1 else 0.0  # norms stay near 1
            parameter.copy_((base + 0.4 * wave).reshape(parameter.shape))
    return model


def projections(model: Any) -> dict[str, list[float]]:
    """Every parameter's gradient as two numbers: its norm, and its product with cos of the index."""
    import torch

    summary = {}
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, f"{name} has no gradient"
        grad = parameter.grad.detach().double().flatten()
        wave = torch.cos(torch.arange(grad.numel(), dtype=torch.float64) * 0.73)
        summary[name] = [float(grad.norm()), float(grad @ wave)]
    return summary


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {"<pad>": 0, "<eos>": 1, **{f"w{i}": i for i in range(2, VOCABULARY)}}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<pad>")),
        pad_token="<pad>",
        eos_token="<eos>",
    )


@contextmanager
def trainer(case: Case, *, temperature: float, shift: float = 0.0) -> Any:
    """TRL's trainer around `llama()`, replaying the batch of this file; train mode, nothing written."""
    import torch
    import transformers
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"  # it warns of `rollout_func`
    transformers.utils.logging.disable_progress_bar()
    rewards = [r for group in (MISSING if case.missing else REWARDS) for r in group]

    def replay(prompts: list[str], _: Any) -> dict[str, Any]:
        assert len(prompts) == len(rewards)
        return {
            "prompt_ids": [prompt for prompt in PROMPTS for _ in range(GROUP_SIZE)],
            "completion_ids": [completion for group in COMPLETIONS for completion in group],
            "logprobs": None,
            "env_mask": [mask for group in MASKS for mask in group],
        }

    def reward(completions: list[Any], **_: Any) -> list[float | None]:
        return rewards

    with tempfile.TemporaryDirectory() as folder:
        llama(shift).save_pretrained(folder)  # TRL loads its reference model by name, so a folder it is
        arguments = GRPOConfig(
            output_dir=folder,
            model_init_kwargs={"dtype": "float32"},
            per_device_train_batch_size=len(rewards) // case.micro_batches,
            gradient_accumulation_steps=case.micro_batches,
            num_generations=GROUP_SIZE,
            max_completion_length=case.max_completion_length,
            loss_type=case.loss_type,
            beta=case.beta,
            epsilon=case.epsilon,
            epsilon_high=case.epsilon_high,
            scale_rewards=case.scale_rewards,
            temperature=temperature,
            use_bias_correction_kl=False,  # by default TRL multiplies k3 by the ratio
            bf16=False,
            use_cpu=True,
            gradient_checkpointing=False,
            report_to="none",
        )
        made = GRPOTrainer(
            model=folder,
            reward_funcs=reward,
            args=arguments,
            train_dataset=Dataset.from_dict({"prompt": ["w5"] * len(PROMPTS)}),
            processing_class=tokenizer(),
            rollout_func=replay,
        )
        made.current_gradient_accumulation_steps = case.micro_batches  # the training loop sets it
        made.model.train()
        torch.manual_seed(0)
        yield made


def _padded(rows: list[list[float]], dtype: Any) -> Any:
    import torch

    width = max(map(len, rows))
    return torch.tensor([row + [0.0] * (width - len(row)) for row in rows], dtype=dtype)


def _inputs(made: Any, case: Case, old: list[list[float]], reference: list[list[float]], dtype: Any) -> Any:
    """TRL's scored batch, with the given old and reference log-probs in it."""
    import torch

    inputs = made._generate_and_score_completions([{"prompt": "w5"}] * (len(PROMPTS) * GROUP_SIZE))
    inputs["advantages"] = inputs["advantages"].to(dtype)
    if case.weighted:
        weights = _padded([[1 / size for size in row] for row in sizes()], torch.float64)
        inputs["advantages"] = inputs["advantages"].unsqueeze(1) * weights
    if case.old == "given":
        inputs["old_per_token_logps"] = _padded(old, dtype)
    if case.beta:
        inputs["ref_per_token_logps"] = _padded(reference, dtype)
    return inputs


def _micro_batches(inputs: Any, case: Case) -> list[Any]:
    from trl.trainer.utils import split_tensor_dict

    return list(split_tensor_dict(inputs, case.micro_batches))


def logprob_case(case: Case, batch: dict[str, Any]) -> dict[str, Any]:
    """TRL's loss as a function of log-probs: its value and ∂loss/∂logprob, in float64."""
    import torch

    with trainer(case, temperature=1.0) as made:
        inputs = _inputs(made, case, batch["old_logprobs"], batch["ref_logprobs"], torch.float64)
        leaf = _padded(batch["logprobs"], torch.float64).requires_grad_()
        chunks = iter(leaf.chunk(case.micro_batches))

        def given(*_: Any, **__: Any) -> tuple[Any, Any, None]:
            rows = next(chunks)
            return rows, torch.zeros_like(rows), None

        made._get_per_token_logps_and_entropies = given
        loss = sum(made.compute_loss(made.model, rows) for rows in _micro_batches(inputs, case))
        loss.backward()
    return {
        **asdict(case),
        "loss": loss.item(),
        "grad": [row[: len(c)] for row, c in zip(leaf.grad.tolist(), batch["logprobs"], strict=True)],
        "advantages": None if case.weighted else inputs["advantages"].tolist(),
    }


def model_case(case: Case, batch: dict[str, Any]) -> dict[str, Any]:
    """TRL's loss on the Llama: its value and every parameter's gradient, in float32."""
    import torch

    with trainer(case, temperature=TEMPERATURE) as made:
        old, reference = batch["model_old_logprobs"], batch["model_ref_logprobs"]
        inputs = _inputs(made, case, old, reference, torch.float32)
        loss = made.compute_loss(made.model, inputs)
        loss.backward()
        return {**asdict(case), "loss": loss.item(), "grad": projections(made.model)}


def model_logprobs(shift: float = 0.0) -> list[list[float]]:
    """The Llama's log-probs of all completion tokens under `TEMPERATURE`, by TRL."""
    import torch

    case = Case(name="", loss_type="dapo", old="same")
    with trainer(case, temperature=TEMPERATURE, shift=shift) as made, torch.no_grad():
        inputs = _inputs(made, case, [], [], torch.float32)
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        width = inputs["completion_ids"].shape[1]
        values, *_ = made._get_per_token_logps_and_entropies(made.model, ids, mask, width)
    lengths = [len(c) for group in COMPLETIONS for c in group]
    return [row[:n] for row, n in zip(values.tolist(), lengths, strict=True)]


def advantages(rewards: list[list[float | None]], scale: str) -> list[float]:
    """TRL's advantages, in its float32."""
    import torch

    case = Case(name="", loss_type="dapo", old="same", scale_rewards=scale, missing=rewards is MISSING)
    with trainer(case, temperature=1.0) as made:
        values: list[float] = _inputs(made, case, [], [], torch.float64)["advantages"].tolist()
    return values


def build(progress: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Everything that the golden file holds, computed with the TRL that is installed."""
    import torch
    import transformers
    import trl

    scores = logprobs(1, -3.0, -0.2)
    model_scores = model_logprobs()
    batch = {
        "logprobs": scores,
        "old_logprobs": perturbed(scores, 2, 0.5),
        "ref_logprobs": perturbed(scores, 3, 0.7),
        "model_logprobs": model_scores,
        "model_old_logprobs": perturbed(model_scores, 4, 0.5),
        "model_ref_logprobs": model_logprobs(REFERENCE_SHIFT),
    }
    cases = []
    for case in CASES:
        progress(case.name)
        cases.append(logprob_case(case, batch))
    model_cases = []
    for case in MODEL_CASES:
        progress(f"{case.name} (model)")
        model_cases.append(model_case(case, batch))
    return {
        "versions": {m.__name__: m.__version__.split("+")[0] for m in (trl, transformers, torch)},
        "temperature": TEMPERATURE,
        "batch": batch,
        "advantages": [
            {"rewards": rewards, "scale": scale, "advantages": advantages(rewards, scale)}
            for rewards in (REWARDS, MISSING)
            for scale in ("group", "none")
        ],
        "cases": cases,
        "model_cases": model_cases,
    }


if __name__ == "__main__":
    golden = build(lambda name: print(name, file=sys.stderr))
    GOLDEN.parent.mkdir(parents=True, exist_ok=True)
    GOLDEN.write_text(json.dumps(golden, indent=None, separators=(",", ":")) + "\n")
    print(f"wrote {GOLDEN} ({GOLDEN.stat().st_size} bytes)")
