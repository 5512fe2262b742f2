"""Policies small enough to write down: token trees, all groups of their answers, and what `credit` makes of them.

┬ END          0.1          A policy is a table of next-token probabilities, so its answers and their probabilities
└ 1 ┬ END      0.9 · 0.2    are known, and with them the true gradient of the expected reward on the logits. The
    └ 2        0.9 · 0.8    probabilities of groups then give an estimator's exact mean and covariance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import NamedTuple

import numpy as np

from treewise.axes import Objective
from treewise.axes.aggregation import Aggregation, coefficients, denominator
from treewise.credit import credit
from treewise.types import FloatArray, Group, IntArray, Problem, Trajectory

Answer = tuple[int, ...]
END = 0  # the token that ends an answer early
PROBLEM = Problem("enumerated", "")
LARGEST = 40_000  # multisets; beyond it groups are sampled
SAMPLES = 2_000


@dataclass(frozen=True)
class TokenTree:
    """A tabular policy, all its answers and their rewards; an answer with a noisy reward stands there twice.

    Attributes:
        outcomes: [N] every answer with a reward, as a trajectory.
        probabilities: [N] of the outcomes.
        edges: [N] the rows of `slopes` that belong to an outcome's tokens.
        slopes: [E, L] gradient of log π of every token of the tree on all logits.
        depths: [L] the position of the token that a logit is for.
        limit: the longest answer, in tokens.
    """

    outcomes: list[Trajectory]
    probabilities: FloatArray
    edges: list[IntArray]
    slopes: FloatArray
    depths: IntArray
    limit: int

    @property
    def per_answer(self) -> FloatArray:
        """[N, L] gradient of log π(answer) of every outcome."""
        return np.array([self.slopes[edges].sum(0) for edges in self.edges])

    @property
    def truth(self) -> FloatArray:
        """[L] gradient of the expected reward: Σ π(y) r(y) ∇ log π(y)."""
        rewards = np.array([t.reward for t in self.outcomes], dtype=float)
        gradient: FloatArray = (self.probabilities * rewards) @ self.per_answer
        return gradient


def grow(
    next_token: Callable[[Answer], Sequence[float] | FloatArray],
    reward: Callable[[Answer], float],
    *,
    limit: int,
    noise: float = 0.0,
) -> TokenTree:
    """All answers of a policy, by the probabilities of the next token.

    Args:
        next_token: probabilities of the tokens 0 (`END`), 1, … after a prefix; 0 leaves a token out.
        reward: of a whole answer.
        limit: tokens of the longest answer.
        noise: probability that a reward r arrives as 1 − r.
    """
    logits: list[tuple[Answer, int]] = []
    probability: dict[Answer, float] = {(): 1.0}
    answers: list[Answer] = []
    prefixes: list[Answer] = [()]
    for prefix in prefixes:  # grows while it is read
        if len(prefix) == limit or prefix[-1:] == (END,):
            answers.append(prefix)
            continue
        for token, chance in enumerate(next_token(prefix)):
            if chance > 0:
                logits.append((prefix, token))
                probability[(*prefix, token)] = probability[prefix] * chance
                prefixes.append((*prefix, token))
    chances = np.array([probability[(*prefix, token)] / probability[prefix] for prefix, token in logits])
    siblings = np.array([[mine == other for other, _ in logits] for mine, _ in logits])
    slopes = np.eye(len(logits)) - siblings * chances  # of log softmax: one-hot − π
    rows = {(*prefix, token): number for number, (prefix, token) in enumerate(logits)}
    outcomes, probabilities, edges = [], [], []
    for answer in answers:
        own = np.array([rows[answer[: t + 1]] for t in range(len(answer))])
        for value, chance in ((reward(answer), 1 - noise), (1 - reward(answer), noise)):
            if chance > 0:
                outcomes.append(trajectory(answer, value))
                probabilities.append(probability[answer] * chance)
                edges.append(own)
    depths = np.array([len(prefix) for prefix, _ in logits])
    return TokenTree(outcomes, np.array(probabilities), edges, slopes, depths, limit)


def trajectory(answer: Answer, reward: float | None) -> Trajectory:
    """An answer behind a prompt of one token."""
    tokens = np.array([9, *answer])
    return Trajectory(tokens, np.arange(len(tokens)) > 0, np.zeros(len(tokens)), "", reward, "eos")


class Groups(NamedTuple):
    """Groups as outcome numbers `members` [M, G], their weights in an average, and whether they are all there are."""

    members: IntArray
    weights: FloatArray
    exact: bool


def all_groups(probabilities: FloatArray, size: int) -> Groups:
    """Every multiset of `size` outcomes with its probability, G! Π p^k / k!, or a sample where there are too many."""
    if math.comb(len(probabilities) + size - 1, size) > LARGEST:
        drawn = np.random.default_rng(size).choice(len(probabilities), (SAMPLES, size), p=probabilities)
        return Groups(drawn, np.full(SAMPLES, 1 / SAMPLES), False)
    members = np.array(list(combinations_with_replacement(range(len(probabilities)), size)))
    counts = np.array([np.bincount(row, minlength=len(probabilities)) for row in members])
    factorials = np.array([math.factorial(k) for k in range(size + 1)], dtype=float)
    orders = factorials[size] / factorials[counts].prod(1)
    return Groups(members, orders * probabilities[members].prod(1), True)


def estimates(
    tree: TokenTree, members: IntArray, objective: Objective, aggregations: Sequence[Aggregation]
) -> dict[Aggregation, FloatArray]:
    """X of every group, as a batch of its own, under several normalisers: [M, L] each."""
    found: dict[Aggregation, list[FloatArray]] = {aggregation: [] for aggregation in aggregations}
    for start in range(0, len(members), 2_000):
        rows = members[start : start + 2_000]
        groups = [Group(PROBLEM, tuple(tree.outcomes[k] for k in row)) for row in rows]
        credited = credit(groups, objective)
        scored = [k for k in rows.ravel() if tree.outcomes[k].reward is not None]
        edges = np.concatenate([np.empty(0, dtype=np.int64), *(tree.edges[k] for k in scored)])
        owner = np.repeat(np.arange(len(rows)), [len(c.advantages) for c in credited])
        advantages = np.concatenate([c.advantages for c in credited])
        for aggregation in aggregations:
            exponent = objective.weight_exponent
            weights = [coefficients(c.tree, exponent=exponent, aggregation=aggregation) for c in credited]
            totals = np.array(
                [denominator(c.lengths, aggregation=aggregation, max_completion_tokens=tree.limit) for c in credited]
            )
            shape = len(rows), len(tree.slopes)
            places = owner * shape[1] + edges
            on_edges = np.bincount(places, np.concatenate(weights) * advantages / totals[owner], shape[0] * shape[1])
            found[aggregation].append(on_edges.reshape(shape) @ tree.slopes)
    return {aggregation: np.concatenate(parts) for aggregation, parts in found.items()}


class Moments(NamedTuple):
    """How an estimator's mean compares with the true gradient g, and its noise.

    `scale` is the mean's projection on g over |g|, times the tokens that the normaliser divides by (those of the
    longest answer for a constant, else the expected ones), so 1 is the right size. `residual` is |mean/scale − g|/|g|,
    and `variance` the trace of the covariance after division by scale².
    """

    cosine: float
    scale: float
    residual: float
    variance: float


def moments(tree: TokenTree, groups: Groups, values: FloatArray, aggregation: Aggregation) -> Moments:
    """Bias and variance of an estimator's values, [M, L]."""
    truth, mean = tree.truth, groups.weights @ values
    length = tree.probabilities @ [len(edges) for edges in tree.edges]
    scale = mean @ truth / (truth @ truth)
    cosine = mean @ truth / np.linalg.norm(mean) / np.linalg.norm(truth)
    residual = float(np.linalg.norm(mean / scale - truth) / np.linalg.norm(truth))
    variance = float(groups.weights @ ((values - mean) ** 2).sum(1) / scale**2)
    return Moments(
        float(cosine), float(scale * (tree.limit if aggregation == "constant" else length)), residual, variance
    )


def random_tree(seed: int, *, limit: int = 3, last: Sequence[int] = (0, 1, 2), binary: bool = False) -> TokenTree:
    """Random probabilities of END, 1 and 2 and random rewards; at the limit only the tokens in `last`."""
    random = np.random.default_rng(seed)

    def next_token(prefix: Answer) -> FloatArray:
        open_to = np.isin(range(3), last) | (len(prefix) + 1 < limit)
        chances: FloatArray = np.exp(random.normal(size=3)) * open_to
        chances /= chances.sum()
        return chances

    return grow(next_token, lambda _: float(random.random() < 0.5) if binary else random.random(), limit=limit)


def fork_tree(chances: Sequence[float], decided: int | None, *, noise: float = 0.0) -> TokenTree:
    """One fork a token, taken to the left with the given chance. The reward is 1 for left at the fork that decides,
    or the share of lefts where no single one does."""

    def reward(answer: Answer) -> float:
        return float(np.mean(np.array(answer) == 1)) if decided is None else float(answer[decided] == 1)

    return grow(
        lambda prefix: (0.0, chances[len(prefix)], 1 - chances[len(prefix)]), reward, limit=len(chances), noise=noise
    )


def with_exact_values(tree: TokenTree) -> float:
    """G times the variance if the baseline of a token is the exact value of the prefix before it: tree_rloo's limit for
    many answers."""
    values: dict[bytes, FloatArray] = {}
    for outcome, chance in zip(tree.outcomes, tree.probabilities, strict=True):
        for t in range(1, len(outcome.tokens)):
            known = values.setdefault(outcome.tokens[:t].tobytes(), np.zeros(2))
            known += chance * np.array([outcome.reward, 1.0])
    rows = []
    for outcome, edges in zip(tree.outcomes, tree.edges, strict=True):
        before = [values[outcome.tokens[:t].tobytes()] for t in range(1, len(outcome.tokens))]
        rows.append(np.array([outcome.reward - total / chance for total, chance in before]) @ tree.slopes[edges])
    return float(tree.probabilities @ (np.array(rows) ** 2).sum(1) - tree.truth @ tree.truth)
