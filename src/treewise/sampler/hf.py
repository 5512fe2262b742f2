"""In-process sampling from a transformers causal language model.

    requests ─▶ groups of one prefix ─▶ chunks of ≤ max_rows rows
    chunk:  prefill each prefix once ─▶ a row per completion ─▶ draw, drop the rows that end, forward ─▶ …

`generate` is not used, so no `generation_config` has a say. The logits come out of the model's own LM head
in the model's dtype and are then upcast: with bf16 weights a logit near 20 is rounded to steps of 1/8, and
both the draw and the log-prob are those of the rounded logits.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedConfig

from treewise.policy import causal_lm
from treewise.sampler import Request, check_requests
from treewise.sampler.cache import in_place_cache, plain_attention
from treewise.sampler.draw import draw, hits_stop, logits_filters
from treewise.types import Completion, IntArray, Sampling, StopReason

PREFILL_TOKENS = 16_384  # tokens of one prefill forward; longer ones are cut, which bounds the activations


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
        ValueError: the model has no cache of the kind that transformers' `Cache` describes.
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
        inputs = inspect.signature(causal_lm(model).forward).parameters
        if not (names := {"cache", "past_key_values"} & inputs.keys()):
            raise ValueError(f"{type(causal_lm(model)).__name__} can't be sampled: its forward takes no cache")
        self.model = model
        self.version = 0
        self._end_ids = end_ids
        self._vocab_size = vocab_size
        self._decode = decode
        self._max_rows = max_rows
        self._cache_name = min(names)  # `cache` since transformers 5.24, `past_key_values` before
        self._config: PreTrainedConfig = causal_lm(model).config.get_text_config(decoder=True)
        # Linear attention and state-space layers have no place for padding, ALiBi models no positions to
        # pass: they get the model's own cache and batches of equally long prefixes.
        self._positioned = "position_ids" in inputs
        self._ragged = self._positioned and plain_attention(self._config)

    def sample(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        """One completion per request, in their order.

        The log-probs are those of the plain softmax at the temperature (at temperature 0: of the untempered
        softmax), also when a filter such as top-p changed what was drawn. A completion ends with its stop
        string's last token, whole.

        Raises:
            ValueError: see `check_requests`; or the logits are not finite.
        """
        check_requests(requests, sampling, max_length=max_length(self._config))
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
        """Later completions carry `version`. The weights are copied, unless the model is the policy itself.

        Raises:
            ValueError: the two models don't have the same parameters.
        """
        if causal_lm(policy) is not causal_lm(self.model):
            ours, theirs = dict(self.model.named_parameters()), dict(policy.named_parameters())
            for name in ours.keys() | theirs.keys():
                if name not in ours or name not in theirs or ours[name].shape != theirs[name].shape:
                    raise ValueError(f"the policy and the sampler's model differ in {name}: they must be one architecture")
            self.model.load_state_dict(policy.state_dict())
        self.version = version

    def _chunks(self, rows: Sequence[_Row]) -> list[list[_Row]]:
        """Rows of one prefix together, short prefixes first, a prefix in two chunks only if it has too many rows."""
        groups: dict[bytes, list[_Row]] = {}
        for row in rows:
            groups.setdefault(row.prefix.tobytes(), []).append(row)
        chunks: list[list[_Row]] = []
        for group in sorted(groups.values(), key=lambda group: len(group[0].prefix)):
            for start in range(0, len(group), self._max_rows):
                part = group[start : start + self._max_rows]
                fits = chunks and len(chunks[-1]) + len(part) <= self._max_rows
                if fits and (self._ragged or len(chunks[-1][0].prefix) == len(part[0].prefix)):
                    chunks[-1] += part
                else:
                    chunks.append(part)
        return chunks

    def _complete(self, rows: list[_Row], sampling: Sampling) -> None:
        """Draws all tokens of `rows`; rows of one prefix are adjacent."""
        filters = logits_filters(sampling) if sampling.filtered else None
        batch = _Batch(self, rows, sampling.max_new_tokens)
        for step in range(sampling.max_new_tokens):
            logits = batch.logits[:, : self._vocab_size]
            scores = filters(batch.ids, logits.float()) if filters else None
            tokens, logprobs = draw(logits, batch.uniforms[:, step], sampling.temperature, filtered=scores)
            alive = [
                self._extend(row, token, logprob, sampling)
                for row, token, logprob in zip(rows, tokens.tolist(), logprobs.tolist(), strict=True)
            ]
            if step + 1 == sampling.max_new_tokens or not any(alive):
                return
            if not all(alive):
                order = survivors(alive)
                rows = [rows[index] for index in order]
                index = torch.tensor(order, device=tokens.device)
                batch.reorder(index)
                tokens = tokens[index]
            batch.forward(tokens[:, None])

    def _extend(self, row: _Row, token: int, logprob: float, sampling: Sampling) -> bool:
        """Appends a token; false if the completion ends with it."""
        row.tokens.append(token)
        row.logprobs.append(logprob)
        if token in self._end_ids:
            row.stop_reason = "eos"
            return False
        if hits_stop(row.tokens, sampling.stop, self._decode):
            row.stop_reason = "stop"
            return False
        return True


class _Batch:
    """The rows in flight: the model's cache and, per row, its last logits `[rows, V]`, its ids so far
    `[rows, columns]` (a pad repeats the row's first token, so no token is seen that the row lacks), which
    columns are not padding, its next position and its uniforms."""

    def __init__(self, sampler: HFSampler, rows: Sequence[_Row], new_tokens: int) -> None:
        lm = causal_lm(sampler.model)
        prefixes = {row.prefix.tobytes(): row.prefix for row in rows}
        number = {key: index for index, key in enumerate(prefixes)}
        width = max(map(len, prefixes.values()))
        pads = torch.tensor([[width - len(prefix)] for prefix in prefixes.values()], device=lm.device)
        ids = np.stack([np.pad(prefix, (width - len(prefix), 0), mode="edge") for prefix in prefixes.values()])
        self._sampler = sampler
        if sampler._ragged:
            self._cache = in_place_cache(sampler._config, width + new_tokens - 1)
        else:
            self._cache = DynamicCache(config=sampler._config)
        self.ids = torch.empty(len(prefixes), 0, dtype=torch.int64, device=lm.device)
        self._mask = torch.arange(width + new_tokens, device=lm.device) >= pads
        self._position = -pads
        self.uniforms = torch.empty(len(prefixes), 0)
        piece = max(1, PREFILL_TOKENS // len(prefixes)) if sampler._ragged else width
        for columns in torch.as_tensor(ids, device=lm.device).split(piece, dim=1):
            self.forward(columns)
        self.reorder(torch.tensor([number[row.prefix.tobytes()] for row in rows], device=lm.device))
        self.uniforms = torch.tensor(np.stack([row.uniforms for row in rows]), device=lm.device)

    def forward(self, ids: Tensor) -> None:
        """Feeds `ids[rows, n]` and keeps the logits of the last column."""
        self.ids = torch.cat([self.ids, ids], dim=1)
        positions = self._position + torch.arange(ids.shape[1], device=ids.device)
        self._position = self._position + ids.shape[1]
        inputs: dict[str, Any] = {self._sampler._cache_name: self._cache}
        if self._sampler._positioned:
            inputs["position_ids"] = positions.clamp_min(0)
        if self._sampler._ragged:
            inputs["attention_mask"] = self._mask[:, : self.ids.shape[1]]
        output = self._sampler.model(input_ids=ids, use_cache=True, logits_to_keep=1, **inputs)
        self.logits = output.logits[:, -1]

    def reorder(self, order: Tensor) -> None:
        """Row i becomes what row `order[i]` was."""
        self._cache.reorder_cache(order)
        self.ids, self._mask, self._position = self.ids[order], self._mask[order], self._position[order]
        self.uniforms, self.logits = self.uniforms[order], self.logits[order]


def survivors(alive: Sequence[bool]) -> list[int]:
    """The rows that go on, ordered so that as few as possible move: the last ones fill the gaps."""
    count = sum(alive)
    movers = [index for index in range(count, len(alive)) if alive[index]]
    return [index if alive[index] else movers.pop() for index in range(count)]


def max_length(config: PreTrainedConfig) -> int | None:
    """The longest sequence that the model reads in one and the same way, in tokens; `None` without a limit.

    LongRoPE turns all positions by other angles once a batch passes the original length, which would
    make a completion depend on its neighbours: the original length is the limit then.
    """
    limit = getattr(config, "max_position_embeddings", None)
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        return int(rope.get("original_max_position_embeddings") or limit)
    return limit


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
