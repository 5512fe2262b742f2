"""GPT-2 with fresh weights, small enough to train or differentiate many times."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

SIZES = MappingProxyType({"tiny": (2, 64, 4), "small": (12, 768, 12)})  # layers, width, heads


def gpt2(size: str, *, vocabulary: int, positions: int, **more: Any) -> Any:
    """A GPT-2 without dropout, its weights drawn by torch's generator; `more` goes to its config."""
    from transformers import GPT2Config, GPT2LMHeadModel

    layers, width, heads = SIZES[size]
    sizes = {"n_layer": layers, "n_embd": width, "n_head": heads, "n_positions": positions, "vocab_size": vocabulary}
    absent = dict.fromkeys(("bos_token_id", "eos_token_id"))
    dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    return GPT2LMHeadModel(GPT2Config(**sizes, **absent, **dropout, **more))
