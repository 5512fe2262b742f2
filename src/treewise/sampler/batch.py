"""A batch of sequences that a causal language model continues, one column of tokens at a time.

Rows are left-padded, so that all rows write the same column of the cache. Linear-attention and state-space
layers have no place for padding and ALiBi models no positions to pass: they get the model's own cache,
and batches of equally long prefixes only.

    one row        x y z           what all prefixes begin with (a system message, worked examples) is computed once,
    every row      x y z|a b c     and copied to where each row has it; keys know positions, not columns
                   · x y|z d e     what falls behind the bar is computed row by row
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedConfig

from treewise.policy import causal_lm
from treewise.sampler.cache import in_place_cache, plain_attention
from treewise.types import IntArray

PREFILL_TOKENS = 16_384  # of one forward; longer prefills are cut by columns, which bounds the activations
WORTH_SHARING = 16  # tokens that all prefixes begin with; below, a forward of their own costs more than it saves


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A model and how its forward is called with a cache.

    cache_name: `cache` since transformers 5.24, `past_key_values` before.
    positioned: whether it takes positions.
    ragged: whether prefixes of different lengths may share a batch.
    """

    model: nn.Module
    config: PreTrainedConfig
    cache_name: str
    positioned: bool
    ragged: bool


def cached_model(model: nn.Module) -> CachedModel:
    """Looks at a transformers causal language model, or a peft model around one.

    Raises:
        ValueError: its forward takes no cache.
    """
    lm = causal_lm(model)
    inputs = inspect.signature(lm.forward).parameters
    names = {"cache", "past_key_values"} & inputs.keys()
    if not names:
        raise ValueError(f"{type(lm).__name__} can't be sampled in process: its forward takes no cache")
    config = lm.config.get_text_config(decoder=True)
    positioned = "position_ids" in inputs
    return CachedModel(model, config, min(names), positioned, positioned and plain_attention(config))


class Batch:
    """Rows in flight.

    ids: `[rows, columns]` so far; a pad repeats its row's first token, so that it adds no id to the row.
    logits: `[rows, V]` of the last column, in the model's dtype.
    """

    def __init__(self, cached: CachedModel, prefixes: Sequence[IntArray], new_tokens: int) -> None:
        """Prefills one row per prefix, with room for `new_tokens` more columns."""
        device = causal_lm(cached.model).device
        width = max(map(len, prefixes))
        padded = [np.pad(prefix, (width - len(prefix), 0), mode="edge") for prefix in prefixes]
        pads = torch.tensor([[width - len(prefix)] for prefix in prefixes], device=device)
        assert cached.ragged or not pads.any(), "this model needs prefixes of one length"
        self._cached = cached
        if cached.ragged:
            self._cache = in_place_cache(cached.config, width + new_tokens)
        else:
            self._cache = DynamicCache(config=cached.config)
        columns = torch.tensor(np.stack(padded), device=device)
        shared = common_prefix(prefixes) if cached.ragged and len(prefixes) > 1 else 0
        shared = min(shared, width - 1) if shared >= WORTH_SHARING else 0
        self.ids = columns[:, :0]
        if shared:
            self._prefill_once(columns[pads.argmin(), None, :shared], pads)  # the longest row has no padding
        self.ids = columns[:, :shared]
        self._mask = torch.arange(width + new_tokens, device=device) >= pads
        self._position = shared - pads
        self._prefill(columns[:, shared:])

    def _prefill_once(self, row: Tensor, pads: Tensor) -> None:
        """Computes one row for all, and gives it to each where its padding ends."""
        self.ids = row[:, :0]
        self._mask, self._position = torch.ones_like(row, dtype=torch.bool), torch.zeros_like(row[:, :1])
        self._prefill(row)
        for layer in self._cache.layers:
            layer.spread(pads)

    def _prefill(self, columns: Tensor) -> None:
        piece = max(1, PREFILL_TOKENS // len(columns)) if self._cached.ragged else columns.shape[1]
        for part in torch.split(columns, piece, dim=1):
            self.forward(part)

    def forward(self, ids: Tensor) -> None:
        """Appends `ids[rows, n]`."""
        self.ids = torch.cat([self.ids, ids], dim=1)
        positions = self._position + torch.arange(ids.shape[1], device=ids.device)
        self._position = self._position + ids.shape[1]
        inputs: dict[str, Any] = {self._cached.cache_name: self._cache}
        if self._cached.positioned:
            inputs["position_ids"] = positions.clamp_min(0)
        if self._cached.ragged:
            inputs["attention_mask"] = self._mask[:, : self.ids.shape[1]]
        output = self._cached.model(input_ids=ids, use_cache=True, logits_to_keep=1, **inputs)
        self.logits = output.logits[:, -1]

    def reorder(self, order: Tensor) -> None:
        """Row i becomes what row `order[i]` was; rows may repeat or leave."""
        self._cache.reorder_cache(order)
        self.ids, self._mask, self._position = self.ids[order], self._mask[order], self._position[order]
        self.logits = self.logits[order]


def common_prefix(prefixes: Sequence[IntArray]) -> int:
    """How many tokens all prefixes begin with."""
    length = min(map(len, prefixes))
    same = np.all([prefix[:length] == prefixes[0][:length] for prefix in prefixes], axis=0)
    return length if same.all() else int(same.argmin())


def survivors(alive: Sequence[bool]) -> list[int]:
    """The rows that go on, in an order in which as few as possible move: the last ones fill the gaps."""
    count = sum(alive)
    movers = [index for index in range(count, len(alive)) if alive[index]]
    return [index if alive[index] else movers.pop() for index in range(count)]


def check_cache(cached: CachedModel) -> None:
    """Compares a batch whose rows were multiplied, swapped and dropped with forwards that use no cache.

    Some models keep a state outside of the cache, others silently ignore padding; the numbers of such a
    model would look fine and be wrong.

    Raises:
        ValueError: the next token's distributions differ (total variation above 0.001, for 16-bit weights
            0.1), or the model failed.
    """
    name = type(causal_lm(cached.model)).__name__
    size = cached.config.vocab_size
    pad = 5 if cached.ragged else 0
    stem, text = np.split(np.random.default_rng(0).integers(size, size=WORTH_SHARING + 18), [WORTH_SHARING])
    prefixes = [np.append(stem, text[:9]), np.append(stem, text[9 + pad :])]
    try:
        batch = Batch(cached, prefixes, 2)
        for order in ([0, 1, 1], [2, 0]):
            batch.reorder(torch.tensor(order, device=batch.ids.device))
            batch.forward((torch.arange(len(order), device=batch.ids.device)[:, None] + 5) % size)
        distances = []
        for row, start, logits in zip(batch.ids, (pad, 0), batch.logits, strict=True):
            alone = cached.model(input_ids=row[None, start:], use_cache=False).logits[0, -1]
            difference = logits.float().softmax(dim=-1) - alone.float().softmax(dim=-1)
            distances.append(difference.abs().sum().item() / 2)
    except Exception as error:  # whatever the model's code raises
        raise ValueError(f"{name} can't be sampled in process: {error}") from error
    bound = 0.1 if batch.logits.element_size() == 2 else 1e-3
    if not all(distance <= bound for distance in distances):
        raise ValueError(
            f"{name} can't be sampled in process: with its cache the next token's distribution is off by "
            f"{max(distances):.2g} (total variation) from the model without a cache"
        )
