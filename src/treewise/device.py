"""Where a model runs and in which precision it computes."""

from __future__ import annotations

from typing import Literal

import torch

Device = Literal["cpu", "cuda"]


def compute_device(choice: str) -> Device:
    """The device for a choice; `auto` is the GPU if there is one.

    Raises:
        ValueError: if there is no GPU that torch can use.
    """
    if choice == "cpu" or (choice == "auto" and not torch.cuda.is_available()):
        return "cpu"
    if not torch.cuda.is_available():
        raise ValueError(
            f"device {choice!r}: torch {torch.__version__} finds no GPU; choose cpu, or install a CUDA build"
        )
    return "cuda"


def compute_dtype(choice: str, device: Device) -> torch.dtype:
    """The precision of forward and backward passes; `auto` is bfloat16 where the processor multiplies it faster."""
    if choice != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16}[choice]
    if device == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    fast = torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()
    return torch.bfloat16 if fast else torch.float32
