"""Losses, gradients and advantages of TRL's GRPO family, as the golden file that treewise's presets are compared with.

    pip install -e '.[trl]'
    python scripts/golden_family.py       # writes tests/golden/family_trl_1.16.json

Nothing of TRL is copied here. Its trainers are built around a tiny model; a replay stands for generation and
given numbers for the log-probs and entropies of the models. Scoring, advantages, rollout correction and
loss are the trainers' own:

    rollout_func                        replays the batch (RLOOTrainer has none: its two generation steps do)
    _get_per_token_logps_and_entropies  policy with gradient → `logprobs`, without → `old`, reference → `reference`
    num_iterations = 2                  makes TRL compute `old`; 1 is its on-policy ratio
    use_vllm = True after construction  makes it compute the rollout weights from `sampler`, without an engine
    torch's default dtype float64       TRL makes its rewards in it, so advantages and losses are float64

One micro-batch, one optimizer step. RLOOTrainer knows no environment tokens: its cases have masks of ones.
The file holds every input, so that the comparison needs no TRL; tests/golden/README.md says which preset each
case belongs to and where TRL's definition is another one.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from golden_trl import COMPLETIONS, GROUP_SIZE, MASKS, PROMPTS, _padded, llama, tokenizer

VERSION = "1.16"
GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden" / f"family_trl_{VERSION}.json"
MAX_COMPLETION_LENGTH = 9

# Scores per group, answer and reward function; all are sums of powers of two.
REWARDS: dict[str, Any] = {
    "plain": {
        "weights": [1.0],
        "scores": [[[0.0], [1.0], [0.0], [0.5]], [[1.0], [0.0], [0.5], [1.0]], [[0.5], [0.5], [0.5], [0.5]]],
    },
    "varied": {
        "weights": [1.0],
        "scores": [[[0.0], [1.0], [0.0], [0.5]], [[1.0], [0.0], [0.5], [1.0]], [[0.75], [0.5], [1.0], [0.0]]],
    },
    "missing": {
        "weights": [1.0],
        "scores": [[[1.0], [None], [1.0], [0.0]], [[1.0], [None], [None], [None]], [[0.75], [0.75], [0.75], [0.75]]],
    },
    "two": {  # the first function is the same for all of the second group
        "weights": [1.0, 0.5],
        "scores": [
            [[0.0, 1.0], [1.0, 0.5], [0.0, 0.0], [0.5, 1.0]],
            [[1.0, 0.0], [1.0, 1.0], [1.0, 0.25], [1.0, 0.0]],
            [[0.5, 1.0], [0.0, 0.5], [1.0, 0.0], [0.0, 0.75]],
        ],
    },
    "two, some missing": {  # the second function has one score in the third group
        "weights": [1.0, 0.5],
        "scores": [
            [[0.0, None], [1.0, 0.5], [0.0, 0.0], [0.5, 1.0]],
            [[1.0, 0.0], [None, 1.0], [1.0, 0.25], [0.0, 0.0]],
            [[0.5, None], [0.0, 0.5], [1.0, None], [0.0, None]],
        ],
    },
    "two, one answer without any": {
        "weights": [1.0, 0.5],
        "scores": [
            [[0.0, 1.0], [1.0, 0.5], [None, None], [0.5, 1.0]],
            [[1.0, 0.0], [0.0, 1.0], [1.0, 0.25], [1.0, 0.0]],
            [[0.5, 1.0], [0.0, 0.5], [1.0, 0.0], [0.0, 0.75]],
        ],
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """How TRL is called. `old` is a key of the batch's `old`, or `same` for TRL's own on-policy ratio of 1."""

    name: str
    trainer: str = "GRPOTrainer"
    rewards: str = "plain"
    old: str = "wide"
    sampler: bool = False
    options: dict[str, Any] = field(default_factory=dict)


def _grpo_cases() -> list[Case]:
    def case(name: str, rewards: str = "plain", old: str = "wide", sampler: bool = False, **options: Any) -> Case:
        return Case(name=f"{name} old={old}", rewards=rewards, old=old, sampler=sampler, options=options)

    gspo: dict[str, Any] = {"loss_type": "grpo", "importance_sampling_level": "sequence"}
    narrow: dict[str, Any] = {"epsilon": 3e-4, "epsilon_high": 4e-4}
    luspo: dict[str, Any] = {"loss_type": "luspo", "importance_sampling_level": "sequence"}
    dapo: dict[str, Any] = {"loss_type": "dapo", "epsilon": 0.2, "epsilon_high": 0.28}
    delta: dict[str, Any] = {"loss_type": "dapo", "epsilon": 0.2, "delta": 4.0}
    plain: dict[str, Any] = {"beta": 0.04, "use_bias_correction_kl": False}
    unbiased: dict[str, Any] = {"beta": 0.04, "use_bias_correction_kl": True}
    gdpo: dict[str, Any] = {"loss_type": "grpo", "multi_objective_aggregation": "normalize_then_sum"}
    vespo: dict[str, Any] = {"loss_type": "vespo", "scale_rewards": "none"}

    def correction(mode: str, low: float | None, high: float) -> dict[str, Any]:
        return {
            "vllm_importance_sampling_mode": mode,
            "vllm_importance_sampling_clip_min": low,
            "vllm_importance_sampling_clip_max": high,
        }

    return [
        case("gspo", old="near", **gspo, **narrow),
        case("gspo", old="same", **gspo, **narrow),
        case("gspo wide clip", old="far", **gspo, epsilon=0.2),
        case("gspo kl k3", old="near", **gspo, **narrow, **plain),
        case("gspo kl times the sequence ratio", old="far", **gspo, epsilon=0.2, **unbiased),
        case("two-sided", old="far", **delta),
        case("two-sided kl k3", old="far", **delta, beta=0.001, use_bias_correction_kl=False),
        case("two-sided below the upper clip", old="far", **(delta | {"delta": 1.1})),
        case("dapo", old="far", **dapo),
        case("cispo 5", old="far", loss_type="cispo", epsilon_high=5.0),
        case("cispo 5", old="same", loss_type="cispo", epsilon_high=5.0),
        case("cispo defaults", old="wide", loss_type="cispo"),
        case("cispo defaults", old="same", loss_type="cispo"),
        case("sapo", old="wide", loss_type="sapo"),
        case("sapo", old="far", loss_type="sapo"),
        case("sapo other gates", old="far", loss_type="sapo", sapo_temperature_pos=2.0, sapo_temperature_neg=4.0),
        case("luspo", old="middle", **luspo, epsilon=2e-3, epsilon_high=2.5e-3),
        case("luspo", old="same", **luspo, epsilon=2e-3, epsilon_high=2.5e-3),
        case("luspo wide clip", old="far", **luspo, epsilon=0.2),
        case("luspo kl k3", old="middle", **luspo, epsilon=2e-3, epsilon_high=2.5e-3, **plain),
        case("vespo", old="wide", **vespo),
        case("vespo", old="far", **vespo),
        case("vespo scaled", old="wide", loss_type="vespo"),
        case("vespo sampler uncapped", sampler=True, **vespo, **correction("token_truncate", None, 1e9)),
        case("vespo sampler cap 2", sampler=True, **vespo, **correction("token_truncate", None, 2.0)),
        case("grpo kl unbiased", loss_type="grpo", **unbiased),
        case("grpo kl unbiased", old="same", loss_type="grpo", **unbiased),
        case("dapo kl unbiased", old="far", **dapo, **unbiased),
        case("dapo batch scale", **dapo, scale_rewards="batch"),
        case("dapo batch scale missing", rewards="missing", **dapo, scale_rewards="batch"),
        case("gdpo", rewards="two", **gdpo),
        case("gdpo", rewards="two", old="same", **gdpo),
        case("gdpo some missing", rewards="two, some missing", **gdpo),
        case("gdpo one answer without any", rewards="two, one answer without any", **gdpo),
        case("gdpo of one function", **gdpo),
        case("sum of two functions", rewards="two", **dapo),
        case("top entropy", **dapo, top_entropy_quantile=0.2),
        case("top entropy kl k3", **dapo, top_entropy_quantile=0.2, **plain),
        case("token truncate", sampler=True, loss_type="dapo", **correction("token_truncate", None, 2.0)),
        case("token truncate low", sampler=True, loss_type="dapo", **correction("token_truncate", 0.5, 2.0)),
        case(
            "token truncate kl k3", sampler=True, loss_type="dapo", **plain, **correction("token_truncate", None, 2.0)
        ),
        case("token mask", sampler=True, loss_type="grpo", **correction("token_mask", 0.5, 5.0)),
        case("sequence truncate", sampler=True, loss_type="dapo", **correction("sequence_truncate", None, 3.0)),
        case("sequence mask", sampler=True, loss_type="dapo", **correction("sequence_mask", None, 3.0)),
        case("sequence mask both", sampler=True, loss_type="grpo", **correction("sequence_mask", 0.125, 3.0)),
    ]


def _other_cases() -> list[Case]:
    def rloo(name: str, rewards: str = "varied", old: str = "wide", **options: Any) -> Case:
        return Case(name=f"rloo {name} old={old}", trainer="RLOOTrainer", rewards=rewards, old=old, options=options)

    def gmpo(name: str, old: str = "wide", **options: Any) -> Case:
        return Case(name=f"gmpo {name} old={old}", trainer="GMPOTrainer", old=old, options=options)

    no_clip = 1e9
    return [
        rloo("without kl and clip", beta=0.0, epsilon=no_clip),
        rloo("kl without clip", beta=0.05, epsilon=no_clip),
        rloo("kl without clip", old="same", beta=0.05, epsilon=no_clip),
        rloo("kl clip", beta=0.05, epsilon=0.2),
        rloo("kl clip", old="far", beta=0.05, epsilon=0.2),
        rloo("kl of a group of equal rewards", rewards="plain", beta=0.05, epsilon=no_clip),
        rloo("without kl, a group of equal rewards", rewards="plain", beta=0.0, epsilon=no_clip),
        rloo("missing", rewards="missing", beta=0.0, epsilon=no_clip),
        rloo("whitened", beta=0.0, epsilon=no_clip, normalize_advantages=True),
        gmpo("0.4"),
        gmpo("0.4", old="far"),
        gmpo("0.4", old="same"),
        gmpo("0.3 and 0.5", old="far", epsilon=0.3, epsilon_high=0.5),
        gmpo("kl k3", old="far", beta=0.04),
    ]


CASES = _grpo_cases() + _other_cases()


def _uniform(seed: int, low: float, high: float, digits: int = 4) -> list[list[float]]:
    generator = np.random.default_rng(seed)
    return [[round(float(x), digits) for x in generator.uniform(low, high, len(c))] for g in COMPLETIONS for c in g]


def _moved(rows: list[list[float]], seed: int, width: float, digits: int = 4) -> list[list[float]]:
    """`rows` plus uniform noise in ±width, at most −0.01, so that they stay log-probs."""
    noise = _uniform(seed, -width, width, 6)
    return [
        [min(round(x + n, digits), -0.01) for x, n in zip(row, extra, strict=True)]
        for row, extra in zip(rows, noise, strict=True)
    ]


def batch() -> dict[str, Any]:
    """The golden file's inputs, flat over the answers of all groups; numbers that JSON holds exactly."""
    now = _uniform(11, -4.0, -0.1)
    old = {
        "near": _moved(now, 12, 0.002, 6),
        "middle": _moved(now, 22, 0.01, 6),
        "wide": _moved(now, 14, 0.5),
        "far": _moved(now, 15, 2.5),
        "free": _uniform(21, -6.0, -0.05),
    }
    sampler: list[list[float | None]] = [list(row) for row in _moved(old["wide"], 18, 2.0)]
    sampler[1][2] = sampler[6][0] = None  # tokens that the sampler gave no log-prob for
    # 16ths, so that float32 holds them; three of them are equal and at the threshold of the top 20%
    entropies = [[round(16 * x) / 16 for x in row] for row in _uniform(45, 0.0, 3.0)]
    return {
        "group_size": GROUP_SIZE,
        "max_completion_length": MAX_COMPLETION_LENGTH,
        "prompts": PROMPTS,
        "completions": [c for group in COMPLETIONS for c in group],
        "masks": [m for group in MASKS for m in group],
        "rewards": REWARDS,
        "logprobs": now,
        "old": old,
        "reference": _moved(now, 17, 0.7),
        "sampler": sampler,
        "entropies": entropies,
    }


def _reward_functions(rewards: dict[str, Any]) -> list[Callable[..., list[float | None]]]:
    answers = [scores for group in rewards["scores"] for scores in group]

    def function(number: int) -> Callable[..., list[float | None]]:
        def reward(**_: Any) -> list[float | None]:
            return [scores[number] for scores in answers]

        reward.__name__ = f"reward_{number}"
        return reward

    return [function(number) for number in range(len(rewards["weights"]))]


def _classes(name: str) -> tuple[Any, Any]:
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    if name == "RLOOTrainer":
        from trl.trainer.rloo_config import RLOOConfig
        from trl.trainer.rloo_trainer import RLOOTrainer

        return RLOOTrainer, RLOOConfig
    if name == "GMPOTrainer":
        from trl.experimental.gmpo.gmpo_config import GMPOConfig
        from trl.experimental.gmpo.gmpo_trainer import GMPOTrainer

        return GMPOTrainer, GMPOConfig
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    return GRPOTrainer, GRPOConfig


@contextmanager
def trainer(case: Case, data: dict[str, Any]) -> Any:
    """TRL's trainer for the case, with a replay in the place of generation; train mode, nothing written."""
    import transformers
    from datasets import Dataset

    make_trainer, make_config = _classes(case.trainer)
    transformers.utils.logging.disable_progress_bar()
    prompt_ids = [prompt for prompt in data["prompts"] for _ in range(GROUP_SIZE)]
    rewards = data["rewards"][case.rewards]

    def replay(*_: Any) -> dict[str, Any]:
        return {
            "prompt_ids": prompt_ids,
            "completion_ids": data["completions"],
            "logprobs": data["sampler"] if case.sampler else None,
            "env_mask": data["masks"],
        }

    with tempfile.TemporaryDirectory() as folder:
        llama().save_pretrained(folder)  # TRL loads its reference model by name, so a folder it is
        arguments = make_config(
            output_dir=folder,
            model_init_kwargs={"dtype": "float32"},
            per_device_train_batch_size=len(prompt_ids),
            num_generations=GROUP_SIZE,
            num_iterations=1 if case.old == "same" else 2,
            max_completion_length=MAX_COMPLETION_LENGTH,
            reward_weights=rewards["weights"],
            temperature=1.0,
            bf16=False,
            use_cpu=True,
            gradient_checkpointing=False,
            report_to="none",
            **case.options,
        )
        made = make_trainer(
            model=folder,
            reward_funcs=_reward_functions(rewards),
            args=arguments,
            train_dataset=Dataset.from_dict({"prompt": ["w5"] * len(data["prompts"])}),
            processing_class=tokenizer(),
            **({} if case.trainer == "RLOOTrainer" else {"rollout_func": replay}),
        )
        if case.trainer == "RLOOTrainer":
            made._tokenize_prompts = lambda _: (prompt_ids, None, {})
            made._generate_single_turn = lambda *_: data["completions"]
        if case.sampler:
            made.use_vllm = True
            made._last_loaded_step = made.state.global_step  # no weights to hand over
        made.current_gradient_accumulation_steps = 1  # the training loop sets it
        made.model.train()
        yield made


def run(case: Case, data: dict[str, Any]) -> dict[str, Any]:
    """TRL's advantages, rollout weights and loss, and ∂loss/∂logprob, in float64."""
    import torch

    leaf = _padded(data["logprobs"], torch.float64).requires_grad_()
    old = _padded(data["old"].get(case.old, data["logprobs"]), torch.float64)
    reference = _padded(data["reference"], torch.float64)
    entropies = _padded(data["entropies"], torch.float64)

    with trainer(case, data) as made:
        policy_and_reference = (made.model, made.ref_model)

        def given(model: Any, *_: Any, **__: Any) -> tuple[Any, Any, None]:
            assert model in policy_and_reference
            if model is made.ref_model:
                return reference, entropies, None
            return leaf if torch.is_grad_enabled() else old, entropies, None

        made._get_per_token_logps_and_entropies = given
        torch.set_default_dtype(torch.float64)
        try:
            inputs = made._generate_and_score_completions([{"prompt": "w5"}] * len(data["completions"]))
            loss = made.compute_loss(made.model, inputs)
            loss.backward()
        finally:
            torch.set_default_dtype(torch.float32)
    assert loss.dtype == inputs["advantages"].dtype == torch.float64
    assert leaf.grad is not None
    weights = inputs.get("importance_sampling_ratio")
    per_token = case.options.get("vllm_importance_sampling_mode", "").startswith("token")

    def cut(rows: list[list[float]]) -> list[list[float]]:
        return [row[: len(c)] for row, c in zip(rows, data["completions"], strict=True)]

    return {
        **asdict(case),
        "masks": "ones" if case.trainer == "RLOOTrainer" else "given",
        "loss": loss.item(),
        "grad": cut(leaf.grad.tolist()),
        "advantages": inputs["advantages"].tolist(),
        "rollout_weights": None
        if weights is None
        else cut(weights.tolist())
        if per_token
        else weights.flatten().tolist(),
    }


def defaults() -> dict[str, dict[str, Any]]:
    """What TRL does when an option that some case sets is left out."""
    told: dict[str, dict[str, Any]] = {}
    for name in ("GRPOTrainer", "RLOOTrainer", "GMPOTrainer"):
        used = {option for case in CASES for option in case.options}
        told[name] = {f.name: f.default for f in fields(_classes(name)[1]) if f.name in used}
    return told


def build(progress: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Everything that the golden file holds, computed with the TRL that is installed."""
    import torch
    import transformers
    import trl

    data = batch()
    cases = []
    for case in CASES:
        progress(case.name)
        cases.append(run(case, data))
    return {
        "versions": {m.__name__: m.__version__.split("+")[0] for m in (trl, transformers, torch)},
        "defaults": defaults(),
        "batch": data,
        "cases": cases,
    }


if __name__ == "__main__":
    golden = build(lambda name: print(name, file=sys.stderr))
    GOLDEN.parent.mkdir(parents=True, exist_ok=True)
    GOLDEN.write_text(json.dumps(golden, indent=None, separators=(",", ":")) + "\n")
    print(f"wrote {GOLDEN} ({GOLDEN.stat().st_size} bytes)")
