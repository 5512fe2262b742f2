"""treewise's advantages, losses and gradients against TRL's own trainer.

The golden file always; the same numbers made on the spot where the TRL of the extra `trl` is installed.
How TRL is called, so that its definitions are ours, stands in scripts/golden_trl.py. Where the two differ:

- An answer without verdict: TRL gives it advantage 0 and keeps it in the denominator (and in the KL term);
  here it leaves the group. The sums over tokens agree, the divisions differ.
- TRL multiplies k3 by the ratio unless `use_bias_correction_kl` is off, as it is in the script.
- Rewards, advantages and the LM head are float32 in TRL; equal rewards may leave a rest of rounding
  that is exactly 0 here.
- TRL's `bnpo` over several micro-batches is a mean of means; token aggregation here never is.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

import golden_trl
from compare import by_treewise, credited, micro_batch
from oracle import Row, sampled_positions
from treewise.axes import Objective
from treewise.credit import group_advantages
from treewise.objective import loss, token_terms
from treewise.policy import Policy
from treewise.presets import resolve

FLOAT32 = 1e-5  # relative; TRL's models, heads, rewards and advantages are float32

pytestmark = pytest.mark.filterwarnings("default")  # of TRL and accelerate, in the live comparison


CASES = {case.name: number for number, case in enumerate(golden_trl.CASES)}
WEIGHTED = {case.name for case in golden_trl.CASES if case.weighted}
MODEL_CASES = {case.name: number for number, case in enumerate(golden_trl.MODEL_CASES)}


@pytest.fixture(scope="module")
def stored() -> dict[str, Any]:
    """The golden file."""
    content: dict[str, Any] = json.loads(golden_trl.GOLDEN.read_text())
    return content


@pytest.fixture(scope="module")
def live() -> dict[str, Any]:
    """What the installed TRL says now."""
    trl = pytest.importorskip("trl")
    if not trl.__version__.startswith(golden_trl.VERSION):
        pytest.skip(f"compared with TRL {golden_trl.VERSION}; {trl.__version__} is installed")
    content: dict[str, Any] = golden_trl.build()
    return content


@pytest.fixture(scope="module", params=["stored", "live"])
def golden(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Both, one after the other."""
    content: dict[str, Any] = request.getfixturevalue(request.param)
    return content


def objective_of(case: dict[str, Any]) -> Objective:
    """Our options for TRL's."""
    constant = case["loss_type"] == "dr_grpo"
    options: dict[str, Any] = {
        "aggregation": {"grpo": "sequence", "dr_grpo": "constant"}.get(case["loss_type"], "token"),
        "scale": "std" if case["scale_rewards"] == "group" else "none",
        "clip_low": case["epsilon"],
        "clip_high": case["epsilon_high"],
        "kl_coef": case["beta"],
        "weight_exponent": 1.0 if case["weighted"] else 0.0,
    }
    return resolve("grpo", options | ({"max_completion_tokens": case["max_completion_length"]} if constant else {}))


def rows_of(case: dict[str, Any], old: list[list[float]] | None = None) -> list[list[Row]]:
    """The script's batch as rows, completions flat over all groups as in the file."""
    rewards = golden_trl.MISSING if case["missing"] else golden_trl.REWARDS
    rows = []
    for group, (prompt, completions) in enumerate(zip(golden_trl.PROMPTS, golden_trl.COMPLETIONS, strict=True)):
        masks = golden_trl.MASKS[group]
        rows.append(
            [
                Row(
                    prompt,
                    completion,
                    masks[n],
                    rewards[group][n],
                    old=None if old is None else old[group * golden_trl.GROUP_SIZE + n],
                )
                for n, completion in enumerate(completions)
            ]
        )
    return rows


def sampled(values: list[list[float]], rows: list[list[Row]], *, scored_only: bool = True) -> list[float]:
    """Per-token values of the file at the sampled tokens of all (scored) rows."""
    flat = [row for group in rows for row in group]
    return [
        values[number][t]
        for number, row in enumerate(flat)
        if row.reward is not None or not scored_only
        for t in sampled_positions(row)
    ]


@pytest.mark.parametrize("number", range(4))
def test_advantages_equal_trls(golden: dict[str, Any], number: int) -> None:
    entry = golden["advantages"][number]
    scale = "std" if entry["scale"] == "group" else "none"
    theirs = np.array(entry["advantages"]).reshape(-1, golden_trl.GROUP_SIZE)
    for rewards, expected in zip(entry["rewards"], theirs, strict=True):
        ours = group_advantages(rewards, scale=scale)
        scored = np.array([reward is not None for reward in rewards])
        assert ours[scored] == pytest.approx(expected[scored], rel=FLOAT32, abs=1e-6)
        assert np.isnan(ours[~scored]).all()
        assert not expected[~scored].any()


@pytest.mark.parametrize(
    ("name", "whose"),
    [(name, "ours") for name in CASES] + [(name, "theirs") for name in CASES if name not in WEIGHTED],
)
def test_loss_and_gradient_of_logprobs_equal_trls(golden: dict[str, Any], name: str, whose: str) -> None:
    """With our advantages to TRL's float32, and with TRL's own to float64."""
    case, batch = golden["cases"][CASES[name]], golden["batch"]
    assert case["name"] == name
    objective = objective_of(case)
    rows = rows_of(case)
    groups, total = credited(rows, objective)
    advantages = np.concatenate([group.advantages for group in groups])
    tolerance = FLOAT32
    if whose == "theirs":
        per_token = [[a] * len(c) for a, c in zip(case["advantages"], batch["logprobs"], strict=True)]
        advantages = np.array(sampled(per_token, rows))
        tolerance = 1e-12
    lengths = [length for group in groups for length in group.lengths]
    leaf = torch.tensor(sampled(batch["logprobs"], rows), dtype=torch.float64, requires_grad=True)
    old = torch.tensor(sampled(batch["old_logprobs"], rows), dtype=torch.float64)
    terms = token_terms(
        leaf,
        advantages=torch.tensor(advantages),
        old_logprobs=old if case["old"] == "given" else leaf.detach(),
        sampler_logprobs=old,
        ref_logprobs=torch.tensor(sampled(batch["ref_logprobs"], rows), dtype=torch.float64),
        trajectory=torch.tensor(np.repeat(np.arange(len(lengths)), lengths)),
        objective=objective,
    )
    # TRL counts the sampled tokens of answers without verdict, too.
    theirs = len(sampled(batch["logprobs"], rows, scored_only=False)) if case["missing"] else total
    value = loss(terms, torch.tensor(np.concatenate([group.coefficients for group in groups]) / theirs))
    value.backward()
    assert value.item() == pytest.approx(case["loss"], rel=tolerance, abs=tolerance / 10)
    assert leaf.grad is not None
    assert leaf.grad.tolist() == pytest.approx(sampled(case["grad"], rows), rel=tolerance, abs=1e-15)
    elsewhere = np.abs(np.concatenate(case["grad"])).sum() - np.abs(sampled(case["grad"], rows)).sum()
    assert elsewhere == pytest.approx(0.0, abs=1e-15)


def test_the_cases_reach_every_branch_of_the_clip(golden: dict[str, Any]) -> None:
    rows = rows_of(golden["cases"][0])
    ratios = np.exp(
        np.array(sampled(golden["batch"]["logprobs"], rows)) - sampled(golden["batch"]["old_logprobs"], rows)
    )
    groups, _ = credited(rows, resolve("grpo", {}))
    advantages = np.concatenate([group.advantages for group in groups])
    for outside in (ratios < 0.8, ratios > 1.28):
        assert (outside & (advantages > 0)).any()
        assert (outside & (advantages < 0)).any()


@pytest.mark.parametrize("path", ["tree", "flat"])
@pytest.mark.parametrize("name", MODEL_CASES)
def test_loss_and_every_parameters_gradient_equal_trls(golden: dict[str, Any], name: str, path: Any) -> None:
    case, batch = golden["model_cases"][MODEL_CASES[name]], golden["batch"]
    assert case["name"] == name
    rows = rows_of(case, batch["model_old_logprobs"])
    policy = Policy(golden_trl.llama(), golden["temperature"], golden_trl.VOCABULARY, path)
    policy.reference = golden_trl.llama(golden_trl.REFERENCE_SHIFT)
    if path == "tree":
        policy.reference.set_attn_implementation("treewise")
    step = by_treewise(policy, rows, objective_of(case), budget=20)
    assert step.micro_batches > 1
    assert step.loss == pytest.approx(case["loss"], rel=FLOAT32, abs=1e-6)
    assert step.gradients.keys() == case["grad"].keys()
    for parameter in policy.model.parameters():
        parameter.grad = None
    for name, parameter in policy.model.named_parameters():
        parameter.grad = step.gradients[name]
    for name, ours in golden_trl.projections(policy.model).items():
        norm, along = case["grad"][name]
        assert ours == pytest.approx([norm, along], abs=FLOAT32 * norm), name


def test_the_golden_file_is_what_this_trl_says(stored: dict[str, Any], live: dict[str, Any]) -> None:
    for kind in ("cases", "model_cases"):
        assert [case["name"] for case in stored[kind]] == [case["name"] for case in live[kind]]
        for then, now in zip(stored[kind], live[kind], strict=True):
            assert then["loss"] == pytest.approx(now["loss"], rel=FLOAT32, abs=1e-6), then["name"]


@pytest.mark.parametrize("path", ["tree", "flat"])
def test_logprobs_under_a_temperature_equal_trls(golden: dict[str, Any], path: Any) -> None:
    rows = rows_of(golden["cases"][0])
    policy = Policy(golden_trl.llama(), golden["temperature"], golden_trl.VOCABULARY, path)
    with torch.no_grad():
        ours = policy.logprobs(micro_batch(rows, resolve("dapo", {})))
    assert ours.tolist() == pytest.approx(sampled(golden["batch"]["model_logprobs"], rows), rel=FLOAT32)
