"""Keys and values of a shrinking batch, allocated once and written in place.

        column   0 1 2 3 4 5 6 7
    prefill      · · A B C|            rows are left-padded, so every row writes the same column
                 D E F G H|            and distances between columns are distances between tokens
    expanded     · · A B C|a a' -      one row per completion, room for all of it
                 · · A B C|b b' -
                 D E F G H|c c' -      row b ends: the last row moves into its place

Sliding-window and chunked layers keep all their columns here: transformers then masks what the window
excludes, from the same column distances, so the result is exact at the price of memory.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedConfig
from transformers.cache_utils import CacheLayerMixin, DynamicLayer, DynamicSlidingWindowLayer


class InPlaceLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer's keys and values `[rows, heads, capacity, head size]`, of which `length` columns are set."""

    is_sliding = False

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        self.rows = 0
        self.length = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.rows = len(key_states)
        self.keys, self.values = self._allocate(key_states), self._allocate(value_states)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        end = self.length + key_states.shape[2]
        assert end <= self.capacity, f"the cache holds {self.capacity} columns, {end} are needed"
        self.keys[: self.rows, :, self.length : end] = key_states
        self.values[: self.rows, :, self.length : end] = value_states
        self.length = end
        return self.keys[: self.rows, :, :end], self.values[: self.rows, :, :end]

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Row i becomes what row `beam_idx[i]` was; more rows than before are allocated anew."""
        self.keys, self.values = self._reorder(self.keys, beam_idx), self._reorder(self.values, beam_idx)
        self.rows = len(beam_idx)

    def spread(self, pads: Tensor) -> None:
        """The one row becomes `len(pads)` rows, each with its columns moved to the right by its own `pads[rows, 1]`;
        what stands in front of them is never looked at."""
        columns = (torch.arange(self.length, device=pads.device) - pads).clamp_min(0)
        self.keys, self.values = self._spread(self.keys, columns), self._spread(self.values, columns)
        self.rows = len(pads)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return self.capacity

    def _allocate(self, like: Tensor, rows: int | None = None) -> Tensor:
        return like.new_empty(rows or len(like), like.shape[1], self.capacity, like.shape[3])

    def _spread(self, states: Tensor, columns: Tensor) -> Tensor:
        grown = self._allocate(states, len(columns))
        grown[:, :, : self.length] = states[0][:, columns].transpose(0, 1)
        return grown

    def _reorder(self, states: Tensor, order: Tensor) -> Tensor:
        if len(order) > len(states):
            grown = self._allocate(states, len(order))
            grown[:, :, : self.length] = states[order, :, : self.length]
            return grown
        moved = (order != torch.arange(len(order), device=order.device)).nonzero()[:, 0]
        states[moved, :, : self.length] = states[order[moved], :, : self.length]
        return states


def plain_attention(config: PreTrainedConfig) -> bool:
    """Whether every layer's cache is keys and values over all or the latest tokens, nothing else (no
    linear-attention or state-space state, no keys shared between layers)."""
    layers = DynamicCache(config=config).layers
    return all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in layers)


def in_place_cache(config: PreTrainedConfig, capacity: int) -> Cache:
    """An empty cache of `capacity` columns for a model with plain attention."""
    return Cache(layers=[InPlaceLayer(capacity) for _ in DynamicCache(config=config).layers])
