"""Drawing the next token, and seeing that a completion has ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from treewise.types import Sampling

_BLOCK = 256


def draw(
    logits: Tensor, uniforms: Tensor, temperature: float, *, filtered: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Draws one token per row and gives its log-prob.

    `token = min { v : Σ_{w ≤ v} p_w > u · Σ_w p_w }` with `p = softmax(logits / temperature)`; temperature 0
    takes the likeliest token, and the log-probs of softmax(logits). Softmax is in float32, or in float64 for
    float64 logits.

    Args:
        logits: `[rows, V]` of any dtype.
        uniforms: `[rows]` float64 in [0, 1).
        filtered: `[rows, V]` scores to draw from instead (evaluation); the log-probs stay those of the
            plain tempered softmax, which is then not the distribution that was drawn from.

    Returns:
        Token ids `[rows]` and log-probs `[rows]`.

    Raises:
        ValueError: the logits are not finite.
    """
    wide = torch.promote_types(logits.dtype, torch.float32)
    if temperature > 0 and temperature != 1:
        logits = logits.to(wide) / temperature
    if temperature > 0 and filtered is None:
        probabilities = torch.softmax(logits, dim=-1, dtype=wide)
        tokens = inverse_cdf(probabilities, uniforms)
        logprobs = probabilities.gather(1, tokens[:, None])[:, 0].log()
    else:
        scores = logits if filtered is None else filtered
        tokens = inverse_cdf(scores.softmax(dim=-1), uniforms) if temperature > 0 else scores.argmax(dim=-1)
        # what is likely after filtering may be too rare before it for anything but logarithms
        logprobs = torch.log_softmax(logits, dim=-1, dtype=wide).gather(1, tokens[:, None])[:, 0]
    if not torch.isfinite(logprobs).all():
        raise ValueError("the model's logits are not finite: its weights have diverged or are damaged")
    return tokens, logprobs


def inverse_cdf(weights: Tensor, uniforms: Tensor) -> Tensor:
    """Index `[rows]` where the cumulative sum of `weights[rows, V]` passes `uniforms` times the row's total.

    First the block of the vocabulary, by the blocks' sums, then the entry in it: a float64 running sum over
    all V took a seventh of a decoding step. An entry of weight 0 is never chosen.
    """
    size = weights.shape[-1]
    whole = size - size % _BLOCK
    sums = weights[:, :whole].view(len(weights), -1, _BLOCK).sum(dim=-1)
    block, rest = _pass(torch.cat([sums, weights[:, whole:].sum(dim=-1, keepdim=True)], dim=1), uniforms)
    columns = block[:, None] * _BLOCK + torch.arange(_BLOCK, device=weights.device)
    inside = weights.gather(1, columns.clamp_max(size - 1)).masked_fill(columns >= size, 0)
    return (block * _BLOCK + _pass(inside, rest)[0]).clamp_max(size - 1)


def _pass(weights: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Index `[rows]` of the entry whose share of the row's total holds `uniforms`, and where in the share."""
    cumulative = weights.cumsum(dim=-1, dtype=torch.float64)
    total = cumulative[:, -1]
    # u · total may round up to total, which no entry passes
    target = torch.minimum(uniforms * total, torch.nextafter(total, torch.zeros_like(total)))
    index = torch.searchsorted(cumulative, target[:, None], right=True)
    index = index.clamp_max(weights.shape[-1] - 1)  # NaN is found past the end; `draw` reports it
    above = cumulative.gather(1, index)
    share = weights.gather(1, index).to(torch.float64)
    return index[:, 0], (1 - (above[:, 0] - target) / share[:, 0]).clamp(0, 1)


def logits_filters(sampling: Sampling) -> LogitsProcessorList:
    """The evaluation-only filters as transformers applies them: penalty, temperature, top-k, top-p, min-p."""
    filters = LogitsProcessorList()
    if sampling.repetition_penalty != 1.0:
        filters.append(RepetitionPenaltyLogitsProcessor(float(sampling.repetition_penalty)))
    if sampling.temperature > 0:
        filters.append(TemperatureLogitsWarper(float(sampling.temperature)))
    if sampling.top_k > 0:
        filters.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1.0:
        filters.append(TopPLogitsWarper(float(sampling.top_p)))
    if sampling.min_p > 0:
        filters.append(MinPLogitsWarper(float(sampling.min_p)))
    return filters


def hits_stop(tokens: Sequence[int], stop: Sequence[str], decode: Callable[[Sequence[int]], str]) -> bool:
    """Whether the text of `tokens` contains a stop string, looking only at its end: the caller asks after
    each token. The window grows until it shows more text than the longest stop string, as tokens may stand
    for part of a character or for no text at all."""
    longest = max(map(len, stop), default=0)
    window = longest + 8
    while stop:
        text = decode(tokens[-window:])
        if any(string in text for string in stop):
            return True
        if len(text) >= 2 * longest + 8 or window >= len(tokens):
            return False
        window *= 2
    return False
