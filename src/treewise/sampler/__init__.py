"""The sampler seam: token ids in, token ids and their log-probs out.

    requests ──sample──▶ completions          policy ──sync──▶ sampler (its version is now the policy's)

A request carries its own seed: token t of a completion is a function of the prefix, the weights and the
t-th uniform of `default_rng(SeedSequence(seed))`. So a completion does not depend on what else is in the
batch (beyond float rounding), and an exact resume needs no sampler state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from treewise.types import Completion, IntArray, Sampling


@dataclass(frozen=True, slots=True)
class Request:
    """One completion to draw: continue `prefix[L]` (L ≥ 1, any token ids). `seed` is a path of
    non-negative integers, such as (run seed, step, problem, index, turn). Requests with the same prefix
    share its prefill."""

    prefix: IntArray
    seed: tuple[int, ...]


class Sampler(Protocol):
    """Draws completions with the weights of policy `version`."""

    version: int
    max_length: int | None  # the longest sequence that the model reads, in tokens

    def sample(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        """One completion per request, in their order."""
        ...

    def sync(self, policy: Any, version: int) -> None:
        """Takes over the policy's weights; later completions carry `version`."""
        ...


def check_requests(requests: Sequence[Request], sampling: Sampling, *, max_length: int | None) -> None:
    """Refuses what no sampler can draw. `max_length` is the model's longest sequence, in tokens.

    Raises:
        ValueError: an empty prefix, one that leaves no room for `max_new_tokens`, or a sampling setting
            outside its range.
    """
    if isinstance(sampling.stop, str):
        raise ValueError(f"stop is the string {sampling.stop!r}: give a tuple of strings")
    if "" in sampling.stop:
        raise ValueError("a stop string is empty and would end every completion at once: remove it")
    for name, value, low, high in (
        ("max_new_tokens", sampling.max_new_tokens, 0, float("inf")),
        ("temperature", sampling.temperature, 0, float("inf")),
        ("top_k", sampling.top_k, 0, float("inf")),
        ("top_p", sampling.top_p, 0, 1),
        ("min_p", sampling.min_p, 0, 1),
    ):
        if not low <= value <= high:
            raise ValueError(f"{name} is {value}: it must lie in [{low}, {high}]")
    if sampling.repetition_penalty <= 0:
        raise ValueError(f"repetition_penalty is {sampling.repetition_penalty}: it must be above 0")
    for number, request in enumerate(requests):
        length = len(request.prefix)
        if length == 0:
            raise ValueError(f"request {number} has an empty prefix: a model needs a token to continue (BOS)")
        if max_length is not None and length + sampling.max_new_tokens > max_length:
            raise ValueError(
                f"request {number}: a prefix of {length} tokens and max_new_tokens {sampling.max_new_tokens} "
                f"exceed the model's {max_length} positions: shorten the prompt or lower max_new_tokens"
            )
