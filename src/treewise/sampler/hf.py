"""In-process sampling from a transformers causal language model.

    requests ─▶ groups of one prefix ─▶ chunks of ≤ max_rows rows
    chunk:  prefill each prefix once ─▶ a row per completion ─▶ draw, drop the rows that end, forward ─▶ …

`generate` is not used, so no `generation_config` has a say. The logits come out of the model's own LM head
in the model's dtype and are then upcast: with bf16 weights a logit near 20 is rounded to steps of 1/8, and
both the draw and the log-prob are those of the rounded logits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import PreTrainedConfig

from treewise.policy import causal_lm
from treewise.sampler import Request, check_requests
from treewise.sampler.batch import Batch, cached_model, check_cache, survivors
from treewise.sampler.draw import draw, hits_stop, logits_filters
from treewise.types import Completion, IntArray, Sampling, StopReason


@dataclass(slots=True)
class _Row:
    """A completion in the making."""

    prefix: IntArray
    uniforms: NDArray[np.float64]
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    stop_reason: StopReason = "length"


class HFSampler:
    """Samples with `model` as it stands, so a policy that shares the object needs no copying.

    Args:
        model: a transformers causal language model, or a peft model around one.
        end_ids: every token id that ends a completion.
        vocab_size: ids from here on are padding of the vocabulary and are never drawn.
        decode: token ids → text, for stop strings.
        max_rows: completions in flight at once; it bounds the memory of keys and values.

    Raises:
        ValueError: the model can't be continued through a cache, or does it wrongly (see `check_cache`).
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        end_ids: frozenset[int],
        vocab_size: int,
        decode: Callable[[Sequence[int]], str],
        max_rows: int,
    ) -> None:
        if max_rows < 1:
            raise ValueError(f"max_rows is {max_rows}: at least one row must fit")
        self.model = model
        self.version = 0
        self._cached = cached_model(model)
        self.max_length = max_length(self._cached.config)
        self._end_ids = end_ids
        self._vocab_size = vocab_size
        self._decode = decode
        self._max_rows = max_rows
        with sampling_mode(model):
            check_cache(self._cached)

    def sample(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        """One completion per request, in their order.

        The log-probs are those of the plain softmax at the temperature (at temperature 0: of the untempered
        softmax), also when a filter such as top-p changed what was drawn. A completion that a stop string
        ends keeps all of the token that completed the string.

        Raises:
            ValueError: see `check_requests`; or the logits are not finite.
        """
        check_requests(requests, sampling, max_length=self.max_length)
        rows = [
            _Row(
                np.asarray(request.prefix, dtype=np.int64),
                np.random.default_rng(np.random.SeedSequence(request.seed)).random(sampling.max_new_tokens),
            )
            for request in requests
        ]
        if rows and sampling.max_new_tokens:
            with sampling_mode(self.model):
                for chunk in self._chunks(rows):
                    self._complete(chunk, sampling)
        return [
            Completion(np.array(row.tokens, np.int64), np.array(row.logprobs), row.stop_reason, self.version)
            for row in rows
        ]

    def sync(self, policy: nn.Module, version: int) -> None:
        """Later completions carry `version`. Weights are copied unless the model is the policy's own.

        Raises:
            ValueError: the two models don't have the same parameters.
        """
        if causal_lm(policy) is not causal_lm(self.model):
            copy_weights(policy, self.model)
        self.version = version

    def _chunks(self, rows: Sequence[_Row]) -> list[list[_Row]]:
        """Rows of one prefix side by side and, if they fit, in one chunk; short prefixes first."""
        groups: dict[bytes, list[_Row]] = {}
        for row in rows:
            groups.setdefault(row.prefix.tobytes(), []).append(row)
        chunks: list[list[_Row]] = []
        for group in sorted(groups.values(), key=lambda group: len(group[0].prefix)):
            for start in range(0, len(group), self._max_rows):
                part = group[start : start + self._max_rows]
                fits = chunks and len(chunks[-1]) + len(part) <= self._max_rows
                if fits and (self._cached.ragged or len(chunks[-1][0].prefix) == len(part[0].prefix)):
                    chunks[-1] += part
                else:
                    chunks.append(part)
        return chunks

    def _complete(self, rows: list[_Row], sampling: Sampling) -> None:
        """Draws all tokens of `rows`."""
        filters = logits_filters(sampling) if sampling.filtered else None
        prefixes = {row.prefix.tobytes(): row.prefix for row in rows}
        number = {key: index for index, key in enumerate(prefixes)}
        batch = Batch(self._cached, list(prefixes.values()), sampling.max_new_tokens - 1)
        device = batch.ids.device
        batch.reorder(torch.tensor([number[row.prefix.tobytes()] for row in rows], device=device))
        uniforms = torch.tensor(np.stack([row.uniforms for row in rows]), device=device)
        for step in range(sampling.max_new_tokens):
            logits = batch.logits[:, : self._vocab_size]
            filtered = filters(batch.ids, logits.float()) if filters else None
            tokens, logprobs = draw(logits, uniforms[:, step], sampling.temperature, filtered=filtered)
            alive = [
                self._extend(row, token, logprob, sampling)
                for row, token, logprob in zip(rows, tokens.tolist(), logprobs.tolist(), strict=True)
            ]
            if step + 1 == sampling.max_new_tokens or not any(alive):
                return
            if not all(alive):
                order = survivors(alive)
                rows = [rows[index] for index in order]
                kept = torch.tensor(order, device=device)
                batch.reorder(kept)
                tokens, uniforms = tokens[kept], uniforms[kept]
            batch.forward(tokens[:, None])

    def _extend(self, row: _Row, token: int, logprob: float, sampling: Sampling) -> bool:
        """Appends a token; false if the completion ends with it."""
        row.tokens.append(token)
        row.logprobs.append(logprob)
        if token in self._end_ids:
            row.stop_reason = "eos"
        elif hits_stop(row.tokens, sampling.stop, self._decode):
            row.stop_reason = "stop"
        else:
            return True
        return False


def copy_weights(source: nn.Module, target: nn.Module) -> None:
    """Copies parameters and buffers, into the target's dtype and device.

    Raises:
        ValueError: they don't have the same parameters.
    """
    ours, theirs = dict(target.named_parameters()), dict(source.named_parameters())
    for name in sorted(ours.keys() | theirs.keys()):
        if name not in ours or name not in theirs or ours[name].shape != theirs[name].shape:
            raise ValueError(f"policy and sampler differ in parameter {name}: they must be one architecture")
    target.load_state_dict(source.state_dict())


def max_length(config: PreTrainedConfig) -> int | None:
    """The longest sequence that the model reads in one and the same way, in tokens; `None` without a limit.

    LongRoPE turns all positions by other angles once a batch passes the original length, which would make a
    completion depend on its neighbours: the original length is the limit there.
    """
    limits = [getattr(config, "max_position_embeddings", None)]
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        limits.append(rope.get("original_max_position_embeddings"))
    return min((limit for limit in limits if limit), default=None)


@contextmanager
def sampling_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, no gradients, and an attention that understands padding; all restored at the end."""
    lm = causal_lm(model)
    training = [(module, module.training) for module in model.modules()]
    attention = lm.config._attn_implementation
    model.eval()
    try:
        if attention not in ("sdpa", "eager"):
            lm.set_attn_implementation("sdpa" if lm._supports_sdpa else "eager")
        with torch.inference_mode():
            yield
    finally:
        if lm.config._attn_implementation != attention:
            lm.set_attn_implementation(attention)
        for module, mode in training:
            module.training = mode
