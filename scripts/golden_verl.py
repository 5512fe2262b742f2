"""Advantages, policy losses, KL penalties and rollout corrections of verl, as a golden file for treewise.

    pip install verl==0.9.1               # in an environment of its own; CPU is enough
    python scripts/golden_verl.py         # writes tests/golden/verl_0.9.1.json

verl's own functions are called with the batch of golden_family.py, padded on the right:

    advantages    core_algos.get_adv_estimator_fn; the outcome stands at the last sampled token
    losses        core_algos.get_policy_loss_fn with an ActorConfig, one micro-batch, no global batch counts
    kl            core_algos.kl_penalty and agg_loss, as verl's actor adds them to the loss
    corrections   rollout_corr_helper.compute_rollout_correction_weights and compute_rollout_rejection_mask

One step is rebuilt here in one line, because its module needs a running cluster: KL in the reward
(`ray_trainer.apply_kl_penalty`), token rewards − β · kl_penalty(old, reference) · mask.

float64 all through, but for GDPO, which verl casts to float32. verl knows no missing log-prob of the
sampler: such a token has the trainer's here. tests/golden/README.md says what each case should equal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from golden_family import MAX_COMPLETION_LENGTH, batch
from golden_trl import _padded

VERSION = "0.9.1"
GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden" / f"verl_{VERSION}.json"
SEQUENCE = "seq-mean-token-mean"
CONSTANT = "seq-mean-token-sum-norm"
GROUPS = {"three of four": [0] * 4 + [1] * 4 + [2] * 4, "one answer alone": [0] * 4 + [1] * 4 + [2] + [3] * 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageCase:
    """An estimator of verl with its AlgoConfig; `kl_coef` is that of k1 in the reward, 0 for none."""

    name: str
    estimator: str
    rewards: str = "varied"
    groups: str = "three of four"
    kl_coef: float = 0.0
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCase:
    """A policy loss of verl with its ActorConfig; `correction` names a case of the rollout weights."""

    name: str
    policy_loss: str
    aggregation: str = "token-mean"
    old: str = "far"
    correction: str | None = None
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class KlCase:
    """A KL penalty of verl, and its aggregated loss."""

    name: str
    penalty: str
    aggregation: str = "token-mean"
    reference: str = "near"


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectionCase:
    """Rollout weights (`rollout_is`) or a rejection mask (`rollout_rs`) of verl."""

    name: str
    kind: str
    level: str
    threshold: float | str


ADVANTAGES = [
    AdvantageCase(name="grpo", estimator="grpo"),
    AdvantageCase(name="grpo with a group of equal rewards", estimator="grpo", rewards="plain"),
    AdvantageCase(name="grpo with one answer alone", estimator="grpo", groups="one answer alone"),
    AdvantageCase(name="grpo vectorized", estimator="grpo_vectorized"),
    AdvantageCase(name="grpo without std", estimator="grpo", options={"norm_adv_by_std_in_grpo": False}),
    AdvantageCase(name="rloo", estimator="rloo"),
    AdvantageCase(name="rloo kl", estimator="rloo", kl_coef=0.05),
    AdvantageCase(name="rloo with one answer alone", estimator="rloo", groups="one answer alone"),
    AdvantageCase(name="rloo vectorized", estimator="rloo_vectorized"),
    AdvantageCase(name="rloo vectorized with one answer alone", estimator="rloo_vectorized", groups="one answer alone"),
    AdvantageCase(name="reinforce_pp", estimator="reinforce_plus_plus", options={"gamma": 1.0}),
    AdvantageCase(name="reinforce_pp kl", estimator="reinforce_plus_plus", kl_coef=0.001, options={"gamma": 1.0}),
    AdvantageCase(name="reinforce_pp kl large", estimator="reinforce_plus_plus", kl_coef=0.25, options={"gamma": 1.0}),
    AdvantageCase(name="reinforce_pp_baseline", estimator="reinforce_plus_plus_baseline"),
    AdvantageCase(
        name="reinforce_pp_baseline with a group of equal rewards",
        estimator="reinforce_plus_plus_baseline",
        rewards="plain",
    ),
    AdvantageCase(
        name="gdpo",
        estimator="gdpo",
        rewards="two",
        options={"gdpo_reward_keys": ["first", "second"], "gdpo_reward_weights": [1.0, 0.5]},
    ),
    AdvantageCase(
        name="gdpo default weights",
        estimator="gdpo",
        rewards="two",
        options={"gdpo_reward_keys": ["first", "second"]},
    ),
]

_CLIP = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28}
_GSPO = {"clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4}
_LUSPO = {"clip_ratio_low": 2e-3, "clip_ratio_high": 2.5e-3}
_TV = {"clip_ratio_low": 0.15, "clip_ratio_high": 0.15, "clip_ratio_c": 20.0}
_KL = {"clip_ratio_low": 0.05, "clip_ratio_high": 0.05, "clip_ratio_c": 20.0}
_CISPO = {"clip_ratio_low": 1.0, "clip_ratio_high": 4.0}
_GMPO = {"clip_ratio_low": 0.4, "clip_ratio_high": 0.4}

LOSSES = [
    LossCase(name="vanilla", policy_loss="vanilla"),
    LossCase(name="vanilla clip-higher", policy_loss="vanilla", options=_CLIP),
    LossCase(name="vanilla clip-higher c 10", policy_loss="vanilla", options=_CLIP | {"clip_ratio_c": 10.0}),
    LossCase(name="vanilla without dual clip", policy_loss="vanilla", options=_CLIP | {"clip_ratio_c": 1e9}),
    LossCase(name="vanilla sequence", policy_loss="vanilla", aggregation=SEQUENCE),
    LossCase(name="vanilla sum", policy_loss="vanilla", aggregation="seq-mean-token-sum"),
    LossCase(name="vanilla constant", policy_loss="vanilla", aggregation=CONSTANT),
    LossCase(name="gspo", policy_loss="gspo", aggregation=SEQUENCE, old="near", options=_GSPO),
    LossCase(name="gspo wide clip", policy_loss="gspo", aggregation=SEQUENCE),
    LossCase(name="gspo default aggregation", policy_loss="gspo", old="near", options=_GSPO),
    LossCase(name="gspo as luspo", policy_loss="gspo", aggregation="seq-mean-token-sum", old="middle", options=_LUSPO),
    LossCase(name="cispo defaults", policy_loss="cispo"),
    LossCase(name="cispo 5", policy_loss="cispo", options=_CISPO),
    LossCase(name="gmpo defaults", policy_loss="geo_mean"),
    LossCase(name="gmpo 0.4", policy_loss="geo_mean", options=_GMPO),
    LossCase(name="gmpo 0.3 and 0.5", policy_loss="geo_mean", options={"clip_ratio_low": 0.3, "clip_ratio_high": 0.5}),
    LossCase(name="sapo", policy_loss="sapo", aggregation=SEQUENCE),
    LossCase(name="sapo asked for token-mean", policy_loss="sapo"),
    LossCase(name="dppo tv", policy_loss="dppo_tv", aggregation=CONSTANT, old="free", options=_TV),
    LossCase(name="dppo tv token-mean", policy_loss="dppo_tv", old="free", options=_TV),
    LossCase(name="dppo tv defaults", policy_loss="dppo_tv", old="free"),
    LossCase(name="dppo kl", policy_loss="dppo_kl", aggregation=CONSTANT, old="free", options=_KL),
    LossCase(name="dppo kl defaults", policy_loss="dppo_kl", old="free"),
    LossCase(name="tis", policy_loss="vanilla", old="wide", correction="token truncate 2"),
    LossCase(name="tis sequence", policy_loss="vanilla", old="wide", correction="sequence truncate 2"),
    LossCase(name="icepop", policy_loss="vanilla", aggregation=SEQUENCE, old="wide", correction="token mask 0.5 5"),
    LossCase(name="cispo 5 tis", policy_loss="cispo", old="wide", correction="token truncate 2", options=_CISPO),
    LossCase(name="gmpo tis", policy_loss="geo_mean", old="wide", correction="token truncate 2", options=_GMPO),
]

KL = [
    KlCase(name="k1", penalty="kl"),
    KlCase(name="k2", penalty="mse", aggregation=SEQUENCE),
    KlCase(name="k3", penalty="low_var_kl"),
    KlCase(name="k3 sequence", penalty="low_var_kl", aggregation=SEQUENCE),
    KlCase(name="k3 far from the reference", penalty="low_var_kl", reference="far"),
    KlCase(name="k3 with the gradient of k2", penalty="low_var_kl+"),
]

CORRECTIONS = [
    CorrectionCase(name="token truncate 2", kind="rollout_is", level="token", threshold=2.0),
    CorrectionCase(name="token mask 0.5 5", kind="rollout_is", level="token", threshold="0.5_5.0"),
    CorrectionCase(name="sequence truncate 2", kind="rollout_is", level="sequence", threshold=2.0),
    CorrectionCase(name="sequence mask 0.125 3", kind="rollout_is", level="sequence", threshold="0.125_3.0"),
    CorrectionCase(name="reject token k1 0.5 5", kind="rollout_rs", level="token_k1", threshold="0.5_5.0"),
    CorrectionCase(name="reject sequence k1 0.125 3", kind="rollout_rs", level="seq_sum_k1", threshold="0.125_3.0"),
    CorrectionCase(name="reject geometric k1 0.6 1.4", kind="rollout_rs", level="seq_mean_k1", threshold="0.6_1.4"),
]


def _verl(name: str) -> Any:
    return import_module(f"verl.{name}")


@contextmanager
def _float64() -> Any:
    """verl's integer quotients (Bessel's correction) take torch's default type."""
    import torch

    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def inputs() -> dict[str, Any]:
    """The batch of the TRL file, with a second reference and no missing log-prob of the sampler."""
    data = batch()
    generator = np.random.default_rng(23)
    near = data.pop("reference")
    far = [[min(round(x + float(generator.uniform(-3.5, 3.5)), 4), -0.01) for x in row] for row in data["logprobs"]]
    sampler = [
        [old if x is None else x for x, old in zip(row, other, strict=True)]
        for row, other in zip(data["sampler"], data["old"]["wide"], strict=True)
    ]
    del data["entropies"]
    return {**data, "reference": {"near": near, "far": far}, "sampler": sampler, "groups": GROUPS}


def _tensor(rows: list[list[float]]) -> Any:
    import torch

    return _padded(rows, torch.float64)


def _mask(data: dict[str, Any]) -> Any:
    import torch

    return _padded(data["masks"], torch.int64)


def _cut(tensor: Any, data: dict[str, Any]) -> list[list[float]]:
    return [row[: len(c)] for row, c in zip(tensor.tolist(), data["completions"], strict=True)]


def advantages(case: AdvantageCase, data: dict[str, Any]) -> dict[str, Any]:
    """verl's advantages per token, 0 where the mask is 0, and its returns where they are another thing."""
    import torch

    core, mask = _verl("trainer.ppo.core_algos"), _mask(data)
    scores = torch.tensor([s for group in data["rewards"][case.rewards]["scores"] for s in group], dtype=torch.float64)
    last = [max(t for t, sampled in enumerate(row) if sampled) for row in data["masks"]]
    rewards = torch.zeros(mask.shape, dtype=torch.float64)
    rewards[torch.arange(len(last)), torch.tensor(last)] = scores.sum(dim=1)
    if case.kl_coef:
        old, reference = _tensor(data["old"]["wide"]), _tensor(data["reference"]["near"])
        rewards = rewards - case.kl_coef * core.kl_penalty(old, reference, "kl") * mask
    config = _verl("trainer.config.algorithm").AlgoConfig(adv_estimator=case.estimator, **case.options)
    arguments: dict[str, Any] = {"config": config}
    if case.estimator != "reinforce_plus_plus":
        arguments["index"] = np.array(data["groups"][case.groups])
    if case.estimator.startswith("grpo"):
        arguments["norm_adv_by_std_in_grpo"] = config.norm_adv_by_std_in_grpo
    if case.estimator == "gdpo":
        filled = _padded([[1] * len(row) for row in data["masks"]], torch.int64)
        prompt = torch.ones((len(filled), 1), dtype=torch.int64)
        arguments["batch"] = {"prompts": prompt, "attention_mask": torch.cat([prompt, filled], dim=1)}
        arguments["non_tensor_batch"] = dict(zip(case.options["gdpo_reward_keys"], scores.T.numpy(), strict=True))
    with _float64():
        values, returns = core.get_adv_estimator_fn(case.estimator)(
            token_level_rewards=rewards, response_mask=mask, **arguments
        )
    distinct = case.estimator == "reinforce_plus_plus"
    return {
        **asdict(case),
        "advantages": _cut(values, data),
        "returns": _cut(returns, data) if distinct else None,
    }


def correction(case: CorrectionCase, data: dict[str, Any]) -> dict[str, Any]:
    """verl's weights, or its mask as weights of 0 and 1, from `old` wide and the sampler's log-probs."""
    helper = _verl("trainer.ppo.rollout_corr_helper")
    log_ratio, mask = _tensor(data["old"]["wide"]) - _tensor(data["sampler"]), _mask(data)
    if case.kind == "rollout_is":
        weights, _ = helper.compute_rollout_correction_weights(
            log_ratio, mask, rollout_is=case.level, rollout_is_threshold=case.threshold
        )
    else:
        weights, _ = helper.compute_rollout_rejection_mask(
            log_ratio, mask, rollout_rs=case.level, rollout_rs_threshold=case.threshold
        )
    return {**asdict(case), "weights": _cut(weights, data)}


def policy_loss(case: LossCase, data: dict[str, Any]) -> dict[str, Any]:
    """verl's loss as a function of log-probs: its value and ∂loss/∂logprob, in float64."""
    leaf, mask = _tensor(data["logprobs"]).requires_grad_(), _mask(data)
    config = _verl("workers.config.actor").ActorConfig(
        strategy="fsdp", rollout_n=data["group_size"], use_dynamic_bsz=True, **case.options
    )
    if case.aggregation == CONSTANT:
        config.global_batch_info["loss_scale_factor"] = MAX_COMPLETION_LENGTH
    weights = None
    if case.correction is not None:
        chosen = next(c for c in CORRECTIONS if c.name == case.correction)
        weights = _tensor(correction(chosen, data)["weights"])
    loss, _ = _verl("trainer.ppo.core_algos").get_policy_loss_fn(case.policy_loss)(
        old_log_prob=_tensor(data["old"][case.old]),
        log_prob=leaf,
        advantages=_tensor([[a] * len(c) for a, c in zip(data["advantages"], data["completions"], strict=True)]),
        response_mask=mask.bool(),
        loss_agg_mode=case.aggregation,
        config=config,
        rollout_is_weights=weights,
    )
    loss.backward()
    read = ("clip_ratio_low", "clip_ratio_high", "clip_ratio_c", "tau_pos", "tau_neg")
    return {
        **asdict(case),
        "read": {name: getattr(config, name) for name in read},
        "loss": loss.item(),
        "grad": _cut(leaf.grad, data),
    }


def kl(case: KlCase, data: dict[str, Any]) -> dict[str, Any]:
    """verl's KL per token, its aggregated value and ∂/∂logprob, in float64; coefficient 1."""
    core = _verl("trainer.ppo.core_algos")
    leaf, mask = _tensor(data["logprobs"]).requires_grad_(), _mask(data)
    values = core.kl_penalty(leaf, _tensor(data["reference"][case.reference]), case.penalty)
    loss = core.agg_loss(values, mask.bool(), case.aggregation)
    loss.backward()
    return {
        **asdict(case),
        "values": _cut(values.detach(), data),
        "loss": loss.item(),
        "grad": _cut(leaf.grad, data),
    }


def defaults() -> dict[str, dict[str, Any]]:
    """What verl does when nothing is set."""
    algorithm, actor = _verl("trainer.config.algorithm"), _verl("workers.config.actor")
    actor_options = (
        "clip_ratio clip_ratio_low clip_ratio_high clip_ratio_c loss_agg_mode loss_scale_factor tau_pos tau_neg "
        "use_kl_loss kl_loss_coef kl_loss_type ppo_epochs"
    )
    correction_options = "rollout_is rollout_is_threshold rollout_is_batch_normalize rollout_rs bypass_mode"
    wanted = {
        actor.ActorConfig: actor_options,
        algorithm.AlgoConfig: "gamma norm_adv_by_std_in_grpo use_kl_in_reward kl_penalty gdpo_reward_weights",
        algorithm.KLControlConfig: "type kl_coef",
        algorithm.RolloutCorrectionConfig: correction_options,
    }
    return {
        kind.__name__: {f.name: f.default for f in fields(kind) if f.name in names.split()}
        for kind, names in wanted.items()
    }


def build(progress: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Everything that the golden file holds, computed with the verl that is installed."""
    import torch

    verl = import_module("verl")
    assert verl.__version__ == VERSION, f"the golden file is of verl {VERSION}, installed is {verl.__version__}"
    data = inputs()
    estimated = [advantages(case, data) for case in ADVANTAGES]
    data["advantages"] = [max(row, key=abs) for row in estimated[0]["advantages"]]  # of the losses: grpo's
    losses = []
    for case in LOSSES:
        progress(case.name)
        losses.append(policy_loss(case, data))
    return {
        "versions": {"verl": verl.__version__, "torch": torch.__version__.split("+")[0]},
        "defaults": defaults(),
        "batch": data,
        "advantages": estimated,
        "corrections": [correction(case, data) for case in CORRECTIONS],
        "losses": losses,
        "kl": [kl(case, data) for case in KL],
    }


if __name__ == "__main__":
    golden = build(lambda name: print(name, file=sys.stderr))
    GOLDEN.parent.mkdir(parents=True, exist_ok=True)
    GOLDEN.write_text(json.dumps(golden, indent=None, separators=(",", ":")) + "\n")
    print(f"wrote {GOLDEN} ({GOLDEN.stat().st_size} bytes)")
