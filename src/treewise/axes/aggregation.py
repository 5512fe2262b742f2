"""Aggregation: what a token's term counts, and what the step's sum is divided by.

    loss = −1/D · Σ_it  coefficient_it · term_it        coefficient = |λ(i,t)|^(−p) [÷ the answer's length]

D is fixed once per optimizer step, over all groups, ranks and micro-batches, before anything is packed or skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from treewise.tree import PrefixTree
from treewise.types import FloatArray

Aggregation = Literal["sequence", "token", "constant", "sum"]


def token_weights(tree: PrefixTree, *, exponent: float) -> FloatArray:
    """|λ(i,t)|^(−p) for every sampled token, [A] float64.

    p = 0 is GRPO, p = 1 is λ-GRPO (arXiv 2509.21154), p = ½ the √ of TreeRL (arXiv 2506.11902).
    """
    return tree.size[tree.index].astype(np.float64) ** -exponent


def denominator(lengths: Sequence[int], *, aggregation: Aggregation, max_completion_tokens: int | None = None) -> float:
    """D of one optimizer step: what the sum over tokens is divided by.

    Args:
        lengths: sampled tokens of every scored trajectory of **all** groups of the step, on every rank.
        aggregation: `token` Σ lengths, `sequence` and `sum` their number, `constant` number × max tokens.
    """
    match aggregation:
        case "token":
            return float(sum(lengths))
        case "sequence" | "sum":
            return float(len(lengths))
        case "constant":
            assert max_completion_tokens is not None, "constant aggregation needs max_completion_tokens"
            return float(len(lengths) * max_completion_tokens)


def coefficients(tree: PrefixTree, *, exponent: float, aggregation: Aggregation) -> FloatArray:
    """What each token's term counts before the division by D, [A] float64: |λ|^(−p), also divided by
    the trajectory's sampled length under `sequence` aggregation."""
    weights = token_weights(tree, exponent=exponent)
    if aggregation != "sequence":
        return weights
    return weights / tree.lengths[tree.trajectory]
