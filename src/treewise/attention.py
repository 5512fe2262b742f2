"""Attention on the prefix tree: token q sees k exactly when `k <= q < end[k]`.

    tokens    ▏ prompt ▏ answer 1 ▏ answer 2 ▏        On the CPU the mask is cut into rectangles. Every
    prompt    ▏  ◣     ▏          ▏          ▏        unbranched run S is one causal block S×S, and, if
    answer 1  ▏  ■     ▏   ◣      ▏          ▏        anything follows it, one full block descendants(S)×S.
    answer 2  ▏  ■     ▏          ▏   ◣      ▏        Nothing outside of the blocks is ever computed.

Blocks of the same rows are merged by their log-sum-exp, and in the backward pass each block is fed
the merged output and log-sum-exp, which makes its gradient the exact share of the whole. On CUDA the
same rule is a FlexAttention mask.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from treewise.types import IntArray

NAME = "treewise"  # as transformers knows it

# The ATen names of the CPU flash kernel; it returns the log-sum-exp that the merge needs, takes grouped
# key/value heads as they are, and works in float64, float32 and bf16.
_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class Block(NamedTuple):
    """Queries `[row_start, row_end)` against keys `[column_start, column_end)`; `causal` is square."""

    row_start: int
    row_end: int
    column_start: int
    column_end: int
    causal: bool


@dataclass(frozen=True, slots=True)
class TreeLayout:
    """What attention needs to know of a packed row of trees: its blocks (CPU) or its mask (CUDA)."""

    blocks: tuple[Block, ...]
    mask: Any


def rectangles(end: IntArray) -> tuple[Block, ...]:
    """The blocks of a packed row. `end` changes exactly where one unbranched run stops and the next begins."""
    starts = np.concatenate([[0], np.flatnonzero(np.diff(end)) + 1])
    stops = np.append(starts[1:], len(end))
    blocks = [Block(s, e, s, e, True) for s, e in zip(starts.tolist(), stops.tolist(), strict=True)]
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        last = int(end[start])
        if last > stop:
            blocks.append(Block(stop, last, start, stop, False))
    return tuple(blocks)


def layout(end: IntArray, device: torch.device) -> TreeLayout:
    """Prepare one packed row for `device`."""
    if device.type == "cpu":
        return TreeLayout(rectangles(end), None)
    return TreeLayout((), block_mask(torch.as_tensor(end, device=device)))


def block_mask(end: Tensor) -> Any:
    """The rule `k <= q < end[k]` as a FlexAttention mask."""
    from torch.nn.attention.flex_attention import create_block_mask

    def visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query < end[key])

    return create_block_mask(visible, None, None, len(end), len(end), device=str(end.device))


class _Rectangles(torch.autograd.Function):
    """softmax(q·kᵀ·scale + mask)·v over the blocks; q [1, heads, T, width], k and v [1, kv heads, T, width]."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, blocks: tuple[Block, ...], scale: float) -> Tensor:
        # Also for a bf16 model: the kernel's bf16 backward pass is up to twenty times slower than its float32 one.
        wide = torch.promote_types(query.dtype, torch.float32)
        narrow, (query, key, value) = query.dtype, (t.to(wide) for t in (query, key, value))
        merged = torch.empty(query.shape[:3] + value.shape[3:], dtype=wide)
        lse = torch.empty(query.shape[:3], dtype=wide)
        for row, row_end, column, column_end, causal in blocks:
            rows, columns = slice(row, row_end), slice(column, column_end)
            part, part_lse = _flash(
                query[:, :, rows], key[:, :, columns], value[:, :, columns], 0.0, causal, scale=scale
            )
            if causal:  # every row lies in exactly one causal block, and that comes first
                merged[:, :, rows], lse[:, :, rows] = part, part_lse
                continue
            total = torch.logaddexp(lse[:, :, rows], part_lse)
            merged[:, :, rows].mul_((lse[:, :, rows] - total).exp_().unsqueeze(-1))
            merged[:, :, rows].add_(part * (part_lse - total).exp_().unsqueeze(-1))
            lse[:, :, rows] = total
        ctx.save_for_backward(query, key, value, merged, lse)
        ctx.blocks, ctx.scale = blocks, scale
        return merged.to(narrow)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        query, key, value, merged, lse = ctx.saved_tensors
        narrow, grad = grad.dtype, grad.to(lse.dtype)
        grads = [torch.zeros(t.shape, dtype=lse.dtype) for t in (query, key, value)]
        for row, row_end, column, column_end, causal in ctx.blocks:
            rows, columns = slice(row, row_end), slice(column, column_end)
            parts = _flash_backward(
                grad[:, :, rows],
                query[:, :, rows],
                key[:, :, columns],
                value[:, :, columns],
                merged[:, :, rows],
                lse[:, :, rows],
                0.0,
                causal,
                scale=ctx.scale,
            )
            for total, span, part in zip(grads, (rows, columns, columns), parts, strict=True):
                total[:, :, span].add_(part)
        return *(total.to(narrow) for total in grads), None, None


@cache
def _flex_attention(compiled: bool) -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention) if compiled else flex_attention


def tree_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    tree: TreeLayout | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """transformers' attention interface. Without `tree` (the sampler, the flat path) it is plain SDPA.

    Raises:
        ValueError: if the layer wants something that the tree path doesn't do, instead of ignoring it.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if tree is None:
        plain: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
        )
        return plain
    for name in ("softcap", "sliding_window", "s_aux", "position_bias"):
        if options.get(name) is not None:
            raise ValueError(
                f"{type(module).__name__} uses {name}, which tree attention does not support; "
                "set model.attention = 'flat'"
            )
    if dropout:
        raise ValueError(f"{type(module).__name__} has dropout {dropout}; a policy needs dropout 0")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if tree.blocks:
        output = _Rectangles.apply(query, key, value, tree.blocks, scale)
    else:
        attend = _flex_attention(compiled=query.device.type == "cuda")
        output = attend(query, key, value, block_mask=tree.mask, scale=scale, enable_gqa=True)
    return output.transpose(1, 2).contiguous(), None


def register() -> None:
    """Make `attn_implementation="treewise"` known to transformers."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, tree_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
