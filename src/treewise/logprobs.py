"""Log-probs of given tokens from hidden states, without a `[tokens, vocabulary]` array in memory.

    hidden [R, H] ──W──▶ logits of a chunk of rows ──▶ log-sum-exp, and the wanted entries ──▶ logprobs [N]

The logits are computed again in the backward pass. A row may predict several tokens: the children of
one node of the prefix tree share its row of the LM head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CHUNK_BYTES = 64 * 2**20  # of logits in float32 that exist at one time


def _chunks(rows: int, vocabulary: int) -> list[tuple[int, int]]:
    step = max(1, CHUNK_BYTES // (4 * vocabulary))
    return [(start, min(start + step, rows)) for start in range(0, rows, step)]


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float) -> Tensor:
    """Tempered logits in float32 or wider."""
    logits = hidden @ weight.T
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if bias is not None:
        wide = wide + bias
    return wide if temperature == 1.0 else wide / temperature


class _HeadLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        row: Tensor,
        target: Tensor,
        temperature: float,
    ) -> Tensor:
        wide = torch.promote_types(hidden.dtype, torch.float32)
        lse = torch.empty(len(hidden), dtype=wide, device=hidden.device)
        result = torch.empty(len(row), dtype=wide, device=hidden.device)
        bounds = torch.searchsorted(row, torch.arange(len(hidden) + 1, device=row.device)).tolist()
        for start, stop in _chunks(len(hidden), len(weight)):
            logits = _logits(hidden[start:stop], weight, bias, temperature)
            lse[start:stop] = logits.logsumexp(-1)
            wanted = slice(bounds[start], bounds[stop])
            result[wanted] = logits[row[wanted] - start, target[wanted]]
        ctx.save_for_backward(hidden, weight, row, target, lse, *(() if bias is None else (bias,)))
        ctx.bounds, ctx.temperature = bounds, temperature
        return result - lse[row]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        hidden, weight, row, target, lse, *rest = ctx.saved_tensors
        bias = rest[0] if rest else None
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        grad_hidden = torch.empty_like(hidden) if needs_hidden else None
        grad_weight = torch.zeros(weight.shape, dtype=lse.dtype, device=weight.device) if needs_weight else None
        grad_bias = torch.zeros(len(weight), dtype=lse.dtype, device=weight.device) if needs_bias else None
        row_grad = torch.zeros_like(lse).index_add_(0, row, grad)
        for start, stop in _chunks(len(hidden), len(weight)):
            # d logp(n) / d logits = onehot(target) − softmax, summed over the tokens that the row predicts
            logits = _logits(hidden[start:stop], weight, bias, ctx.temperature)
            inner = logits.sub_(lse[start:stop, None]).exp_().mul_(-row_grad[start:stop, None])
            wanted = slice(ctx.bounds[start], ctx.bounds[stop])
            inner.index_put_((row[wanted] - start, target[wanted]), grad[wanted], accumulate=True)
            if ctx.temperature != 1.0:
                inner.div_(ctx.temperature)
            if grad_bias is not None:
                grad_bias += inner.sum(0)
            inner = inner.to(hidden.dtype)
            if grad_hidden is not None:
                grad_hidden[start:stop] = inner @ weight
            if grad_weight is not None:
                grad_weight += inner.T @ hidden[start:stop]
        return (
            grad_hidden,
            None if grad_weight is None else grad_weight.to(weight.dtype),
            None if grad_bias is None or bias is None else grad_bias.to(bias.dtype),
            None,
            None,
            None,
        )


@torch.no_grad()
def head_entropies(hidden: Tensor, weight: Tensor, bias: Tensor | None, *, temperature: float = 1.0) -> Tensor:
    """Entropy −Σ p log p of softmax(hidden·Wᵀ / temperature) in nats, [R]; arguments as in `head_logprobs`."""
    result = torch.empty(len(hidden), dtype=torch.promote_types(hidden.dtype, torch.float32), device=hidden.device)
    for start, stop in _chunks(len(hidden), len(weight)):
        result[start:stop] = entropies(_logits(hidden[start:stop], weight, bias, temperature))
    return result


def entropies(logits: Tensor) -> Tensor:
    """−Σ p log p over the last dimension, in nats."""
    logprobs = logits.log_softmax(-1)
    return -(logprobs.exp() * logprobs.clamp(min=torch.finfo(logprobs.dtype).min)).sum(-1)


def head_logprobs(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    row: Tensor,
    target: Tensor,
    temperature: float = 1.0,
) -> Tensor:
    """log softmax(hidden·Wᵀ / temperature) at chosen entries.

    Args:
        hidden: [R, H] states of the predicting tokens.
        weight: [V, H] LM head, cut to the ids that exist (padding of the vocabulary left out).
        bias: [V] or `None`.
        row: [N] which row of `hidden` predicts the n-th token, in any order; rows may repeat.
        target: [N] the predicted token's id.
        temperature: of the sampling distribution.

    Returns:
        [N] natural log-probs in float32, or float64 for a float64 model.
    """
    order = torch.argsort(row, stable=True)
    result = _HeadLogprobs.apply(hidden, weight, bias, row[order], target[order], temperature)
    return torch.empty_like(result).index_put((order,), result)
