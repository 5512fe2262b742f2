"""Theorem 1 of arXiv 2509.21154 on a real transformer: where GRPO is a process reward model, and where that ends.

    random groups ─┬─ outcome advantages a_i ──▶ credit ─▶ prepare ─▶ accumulate ─▶ loss, gradient ─┬─▶ difference
                   └─ process advantages A_it ─▶ credit ─▶ prepare ─▶ accumulate ─▶ loss, gradient ─┘

The members of a set λ share a token, so together they give its ∇log π the weight Σ over λ of factor · a, and A_it is
the mean of a over λ. The two sums agree if the members have one factor (coefficient × ratio × correction) and what is
maximised is linear in a. Each setting keeps this, or takes one piece of it away.

The transformer is GPT-2 with random weights and a vocabulary of 64, in float64: the theorem asks for no trained model.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from treewise.analysis import set_starts
from treewise.axes import Objective
from treewise.axes.advantage import Advantage, GroupMean, ProcessAdvantage
from treewise.axes.aggregation import token_weights
from treewise.axes.correction import Truncate
from treewise.axes.trust_region import Clip
from treewise.credit import credit, group_advantages, process_advantages, process_rewards
from treewise.objective import token_terms
from treewise.plot.theorem import Line, draw_theorem
from treewise.policy import Policy
from treewise.reproduce.engine import Report, Row, Table
from treewise.reproduce.options import Theorem
from treewise.reproduce.pool import Cell
from treewise.reproduce.random_groups import ANSWERS, GROUPS, LONGEST, VOCABULARY, policies, random_batch, shape
from treewise.statistics import counted
from treewise.tree import build_tree
from treewise.update import MiniBatch, accumulate, prepare

KEY = "gradient_relative"  # ‖g − g′‖ / ‖g‖ of all weights together
ROUNDING = 1e-10  # a difference up to here is called that
NOISE = 0.02  # standard deviation of log π_sampler around log π_old
EVERYTHING = 10**6  # tokens of a micro-batch: no set is cut, so its members stand beside each other


@dataclass(frozen=True, slots=True)
class Setting:
    """One comparison: what differs from GRPO over tokens, with a KL term and a clip that is never reached.

    Attributes:
        options: of the objective.
        moved: the policy has left π_old, so the trainer's ratios are not 1.
        even: all answers are filled up to one length.
        noise: of the sampler's log-probs: none, one value for all copies of a token, or one for every copy.
        without: where the theorem ends: the setting from which the cause is taken away.
        why: what the cause is.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    moved: bool = False
    even: bool = False
    noise: Literal["none", "token", "copy"] = "none"
    without: str | None = None
    why: str = ""

    def objective(self, advantage: Advantage) -> Objective:
        """With one of the advantages. Made without `presets.resolve`, which refuses process advantages together with
        GSPO's ratio: they would be averaged away, and that is something to show here."""
        wide = Clip(clip_low=1.0, clip_high=99.0)  # acts on ρ above 100 only
        return Objective(**{"advantage": advantage, "kl_coef": 0.04, "trust_region": wide, **self.options})


SEQUENCE, WEIGHTS, TO_SAMPLER = {"aggregation": "sequence"}, {"correction": Truncate()}, {"ratio_base": "sampler"}
GSPO, GSPO_TOKEN = {"ratio": "sequence"}, {"ratio": "sequence_token"}
TOKEN_RATIO, EQUAL = "p = 0, ρ ≠ 1", "sequence mean, equal lengths"
TIS, BASE = "importance weights, shared, ρ ≠ 1", "ratio to the sampler, shared"
LENGTHS = "members of a set have different lengths, so different coefficients 1/length"
SIGN = "the clip goes by the sign of a, which members of a set don't share"
COPIES = "each copy of a token has its own log-prob of the sampler"
SUFFIX = "the ratio of an answer depends on what follows the shared prefix"
AVERAGE = "all tokens of an answer have one gradient, which averages A over it"
SETTINGS = (
    *(
        Setting(f"p = {text}, ρ {'≠' if moved else '='} 1", {"weight_exponent": p}, moved=moved)
        for text, p in (("0", 0.0), ("½", 0.5), ("1", 1.0), ("2", 2.0))
        for moved in (False, True)
    ),
    Setting("constant divisor, ρ ≠ 1", {"aggregation": "constant", "max_completion_tokens": LONGEST}, moved=True),
    Setting(EQUAL, SEQUENCE, even=True),
    Setting(TIS, WEIGHTS, moved=True, noise="token"),
    Setting(BASE, TO_SAMPLER, noise="token"),
    Setting("GSPO-token, ρ = 1", GSPO_TOKEN),
    Setting(f"GSPO-token, ρ = 1, {EQUAL}", GSPO_TOKEN | SEQUENCE, even=True),
    Setting("(a) sequence mean, unequal lengths", SEQUENCE, without=EQUAL, why=LENGTHS),
    Setting("(b) clip at 1 ± 0.2, active", {"trust_region": Clip()}, moved=True, without=TOKEN_RATIO, why=SIGN),
    Setting("(c) importance weights, per copy, ρ ≠ 1", WEIGHTS, moved=True, noise="copy", without=TIS, why=COPIES),
    Setting("(c) ratio to the sampler, per copy", TO_SAMPLER, noise="copy", without=BASE, why=COPIES),
    Setting("(d) GSPO-token, ρ ≠ 1", GSPO_TOKEN, moved=True, without=TOKEN_RATIO, why=SUFFIX),
    Setting("(d) GSPO, ρ ≠ 1", GSPO, moved=True, without=TOKEN_RATIO, why=f"the same, and {AVERAGE}"),
    Setting(
        f"(d) GSPO, ρ = 1, {EQUAL}", GSPO | SEQUENCE, even=True, without=f"GSPO-token, ρ = 1, {EQUAL}", why=AVERAGE
    ),
)
EXAMPLE = {"ABCD": 0.5, "ABEFHI": 0.5, "JKLM": 1.0, "JKLNQST": 0.0, "JKLNQU": 0.0, "VWYZ": 0.5}


class Step(NamedTuple):
    """A loss with its gradient by parameter, the share of clipped tokens, and what it was computed from."""

    loss: float
    gradient: dict[str, Tensor]
    clipped: float
    minibatch: MiniBatch


def step(setting: Setting, advantage: Advantage, seed: int, policy: Policy, old: Policy) -> Step:
    """Loss and gradient of one optimizer step under one of the advantages, by the trainer's own path."""
    objective = setting.objective(advantage)
    groups = credit(random_batch(seed, even=setting.even), objective)
    minibatch = prepare(groups, policy, objective, budget=EVERYTHING, keep_old=False)
    (batch,) = minibatch.batches
    with torch.no_grad():
        before = (old if setting.moved else policy).logprobs(batch)
    noise = np.random.default_rng(seed).normal(scale=NOISE, size=len(batch.tokens) + len(batch.index))
    by_copy = {"none": 0.0, "token": noise[batch.index], "copy": noise[: len(batch.index)]}[setting.noise]
    minibatch = replace(
        minibatch,
        batches=[replace(batch, sampler_logprobs=before.cpu().numpy() + by_copy)],
        old_logprobs=[before if setting.moved else None],  # None: π_old is π
    )
    policy.model.zero_grad(set_to_none=True)
    tally = accumulate(minibatch, policy, objective)
    gradient = {name: p.grad for name, p in policy.model.named_parameters() if p.grad is not None}
    return Step(tally.loss, gradient, tally.sums["clip_ratio/region_mean"] / tally.tokens, minibatch)


@torch.no_grad()
def factors(minibatch: MiniBatch, policy: Policy, objective: Objective) -> dict[str, float]:
    """Σ |coefficient · term| of a step, its least and largest ρ, and the largest quotient of two factors in one set."""
    (batch,), (old,), (ref,) = minibatch.batches, minibatch.old_logprobs, minibatch.ref_logprobs
    now = policy.logprobs(batch)
    advantages, sampler, coefficients = (
        torch.as_tensor(values).to(now) for values in (batch.advantages, batch.sampler_logprobs, batch.coefficients)
    )
    terms = token_terms(
        now,
        advantages=advantages,
        old_logprobs=now if old is None else old,
        sampler_logprobs=sampler,
        ref_logprobs=ref,
        trajectory=torch.as_tensor(batch.trajectory, device=now.device),
        objective=objective,
    )
    factor = (coefficients * terms.corrections * terms.ratios).cpu().numpy()
    low, high = np.full(len(batch.tokens), np.inf), np.zeros(len(batch.tokens))
    np.minimum.at(low, batch.index, factor)
    np.maximum.at(high, batch.index, factor)
    return {
        "loss_size": float((coefficients * terms.objective).abs().sum()),
        "least_ratio": float(terms.ratios.min()),
        "largest_ratio": float(terms.ratios.max()),
        "largest_quotient": float((high[batch.index] / low[batch.index]).max()),
    }


def cells(options: Theorem) -> list[dict[str, Any]]:
    """One batch each."""
    return [{"seed": seed} for seed in range(options.seeds)]


def measure(options: Theorem, cell: Cell, folder: Path) -> list[dict[str, Any]]:
    """Every setting on one batch.

    A loss may be close to 0, as advantages are centred, so its difference is relative to Σ |coefficient · term|. The
    gradient's is ‖g − g′‖ / ‖g‖, over all parameters and for the worst single one.
    """
    torch.set_num_threads(1)
    policy, old = policies(cell["seed"], size=options.size, device=options.device)
    shapes = [shape(random_batch(cell["seed"], even=even)) for even in (False, True)]
    return [_compare(setting, cell["seed"], policy, old) | shapes[setting.even] for setting in SETTINGS]


def _compare(setting: Setting, seed: int, policy: Policy, old: Policy) -> dict[str, Any]:
    outcome, process = (step(setting, rule, seed, policy, old) for rule in (GroupMean(), ProcessAdvantage()))
    found = factors(outcome.minibatch, policy, setting.objective(GroupMean()))
    sizes = np.array([float(g.norm()) for g in outcome.gradient.values()])
    errors = np.array([float((g - process.gradient[name]).norm()) for name, g in outcome.gradient.items()])
    return {
        "seed": seed,
        "setting": setting.name,
        "loss_outcome": outcome.loss,
        "loss_process": process.loss,
        "loss_relative": abs(outcome.loss - process.loss) / found["loss_size"],
        "gradient_relative": float(np.linalg.norm(errors) / np.linalg.norm(sizes)),
        "gradient_relative_worst": float((errors / sizes).max()),
        "clipped": max(outcome.clipped, process.clipped),
        **found,
    }


def report(options: Theorem, rows: Sequence[Row]) -> Report:
    """Where it holds, where it ends, and the worked example."""
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        found[row["setting"]].append(row)
    values = {name: [row[KEY] for row in batches] for name, batches in found.items()}
    lines = [
        Line(setting.name, values[setting.name], values[setting.without] if setting.without else None, setting.why)
        for setting in SETTINGS
    ]
    figure = draw_theorem(lines)
    return Report([_holds(options, found), _breaks(found), worked_example()], figure)


def _most(rows: Sequence[Row], key: str, form: str = ".0e") -> str:
    return format(max(row[key] for row in rows), form)


def _median(rows: Sequence[Row], key: str, form: str = ".2g") -> str:
    return format(float(np.median([row[key] for row in rows])), form)


def _holds(options: Theorem, found: Mapping[str, list[Row]]) -> Table:
    chosen = {setting.name: found[setting.name] for setting in SETTINGS if not setting.without}
    largest = [max(row[KEY] for row in rows) for rows in chosen.values()]
    agree = sum(difference <= ROUNDING for difference in largest)
    batches = next(iter(chosen.values()))
    groups, copies, prefixes = (sum(row[key] for row in batches) for key in ("groups", "with_copies", "with_prefixes"))
    return Table(
        f"Theorem 1: the gradients agree to rounding in {agree} of {len(chosen)} settings, in each of "
        f"{counted(len(batches), 'batch', 'batches')} (largest relative difference {max(largest):.0e})",
        ("setting", "loss", "gradient", "gradient of one tensor", "ratios ρ", "tokens clipped"),
        [
            (
                name,
                *(_most(rows, key) for key in ("loss_relative", KEY, "gradient_relative_worst")),
                _ratios(rows),
                _most(rows, "clipped", ".0%"),
            )
            for name, rows in chosen.items()
        ],
        "Largest difference of all batches. If nothing else is said: mean over tokens, p = 0, ρ = 1; always a KL term "
        "(β = 0.04). Loss: relative to Σ |coefficient · term|. Gradient: ‖g − g′‖/‖g‖, g with outcome and g′ with "
        "process advantages, of all weights together, and of that weight tensor for which it is largest. "
        f"GPT-2 ({options.size}, random weights, vocabulary {VOCABULARY}) in float64; {groups} groups of {ANSWERS} "
        f"random answers of 1 to {LONGEST} tokens: {copies} hold equal answers, {prefixes} an answer that another one "
        f"goes on from, and one in {GROUPS} has equal rewards.",
    )


def _ratios(rows: Sequence[Row]) -> str:
    least, largest = min(row["least_ratio"] for row in rows), max(row["largest_ratio"] for row in rows)
    return "1" if least == largest else f"{least:.2f} to {largest:.2f}"


def _breaks(found: Mapping[str, list[Row]]) -> Table:
    chosen = [(setting, found[setting.name]) for setting in SETTINGS if setting.without]
    medians = [float(np.median([row[KEY] for row in rows])) for _, rows in chosen]
    reasons = dict.fromkeys(f"{setting.name[:3]} {setting.why}" for setting, _ in chosen)
    return Table(
        f"With a cause: the gradients differ by {100 * min(medians):.2g} % to {100 * max(medians):.2g} % (medians)",
        ("setting", "gradient", "gradient, cause taken away", "loss", "tokens clipped", "factors apart"),
        [
            (
                setting.name,
                f"{_median(rows, KEY)} ({_most(rows, KEY, '.2g')})",
                _most(found[setting.without or ""], KEY),
                _median(rows, "loss_relative"),
                _median(rows, "clipped", ".0%"),
                "×" + _median(rows, "largest_quotient"),
            )
            for setting, rows in chosen
        ],
        f"Each cause alone; median (largest) difference. Why: {'. '.join(reasons)}. Cause taken away: the largest "
        "difference with (a) answers filled up to equal lengths; (b) bounds that no ρ reaches; (c) one value for all "
        f"copies of a token, with noise of {NOISE:g} in the sampler's log-prob; (d) the token's ratio, for ρ = 1 that "
        "of GSPO-token. Factors apart: by how much "
        "coefficient × ratio × weight of two members of one set differ, at the most.",
    )


def worked_example() -> Table:
    """Every set of `EXAMPLE` but the root, with what GRPO and λ-GRPO make of it (ε = 0)."""
    answers, rewards = list(EXAMPLE), np.array(list(EXAMPLE.values()))
    tree = build_tree([[*map(ord, a)] for a in answers], [np.ones(len(a), dtype=bool) for a in answers])
    outcome = group_advantages(rewards.tolist(), epsilon=0.0)[tree.trajectory]
    grpo, lambda_grpo = (
        np.bincount(tree.index, weights=token_weights(tree, exponent=p) * outcome)[tree.index] for p in (0.0, 1.0)
    )
    values, advantages = process_rewards(tree, rewards), process_advantages(tree, rewards, epsilon=0.0)
    table: list[tuple[str, ...]] = []
    for tokens in np.split(np.arange(len(tree)), np.flatnonzero(set_starts(tree))[1:]):
        entries = np.flatnonzero(tree.index == tokens[0])
        members = " ".join(answers[number] for number in tree.trajectory[entries])
        numbers = (f"{column[entries[0]]:+.4f}" for column in (advantages, grpo, lambda_grpo))
        table.append(("".join(map(chr, tree.tokens[tokens])), members, f"{values[entries[0]]:.4f}", *numbers))
    return Table(
        "Worked example: rewards " + ", ".join(f"{name} {reward:g}" for name, reward in EXAMPLE.items()),
        ("set", "members", "R̂", "process advantage", "total: GRPO", "total: λ-GRPO"),
        table,
        "ε = 0. GRPO's total is the process advantage times the set's size; λ-GRPO's is the process advantage.",
    )
