"""Tiny random models of many families, and small groups with every awkward shape, for any test to use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from oracle import Row
from treewise.types import Group, Problem, Trajectory

VOCABULARY = 40

_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 1,
    "initializer_range": 0.3,  # large, so that attention and logits are far from uniform
}
_EXPERTS: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2}
_GPT2: dict[str, Any] = {
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
    "attn_pdrop": 0.0,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
}

# name → model type and what its config needs besides `_COMMON`.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", _GPT2),
    "gpt2-scaled": ("gpt2", {**_GPT2, "scale_attn_by_inverse_layer_idx": True}),
    "llama": ("llama", {}),
    "llama-bias": ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral-window": ("mistral", {"sliding_window": 4}),
    "qwen2": ("qwen2", {}),
    "qwen2-window": ("qwen2", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}),
    "qwen3": ("qwen3", {"head_dim": 8}),
    "gemma": ("gemma", {"head_dim": 8}),
    "gemma2": ("gemma2", {"head_dim": 8, "sliding_window": 4, "query_pre_attn_scalar": 8}),
    "gemma2-softcap": (
        "gemma2",
        {
            "head_dim": 8,
            "query_pre_attn_scalar": 8,
            "sliding_window": 64,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
        },
    ),
    "gemma3": ("gemma3_text", {"head_dim": 8, "sliding_window": 4, "query_pre_attn_scalar": 8}),
    "smollm3": ("smollm3", {"num_hidden_layers": 4}),
    "olmo2": ("olmo2", {}),
    "phi3": ("phi3", {}),
    "granite": (
        "granite",
        {
            "logits_scaling": 3.0,
            "embedding_multiplier": 2.0,
            "residual_multiplier": 0.5,
            "attention_multiplier": 0.4,
        },
    ),
    "cohere": ("cohere", {"logit_scale": 0.3}),
    "bloom": ("bloom", {"n_layer": 2, "n_head": 4, "hidden_dropout": 0.0, "attention_dropout": 0.0}),
    "mpt": ("mpt", {"d_model": 16, "n_heads": 4, "n_layers": 2}),
    "falcon-alibi": ("falcon", {"alibi": True}),
    "gpt_oss": ("gpt_oss", {**_EXPERTS, "head_dim": 8, "sliding_window": 4}),
    "mixtral": ("mixtral", {**_EXPERTS, "sliding_window": None}),
    "llama4": (
        "llama4_text",
        {"num_local_experts": 2, "attention_chunk_size": 4, "intermediate_size_mlp": 24, "head_dim": 8},
    ),
    "mamba": ("mamba", {"state_size": 4}),
    "lfm2": ("lfm2", {"layer_types": ["conv", "full_attention"]}),
    "qwen3_next": (
        "qwen3_next",
        {
            "head_dim": 8,
            "layer_types": ["linear_attention", "full_attention"],
            "linear_num_value_heads": 2,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 8,
            "shared_expert_intermediate_size": 8,
        },
    ),
}


def config(family: str, **changes: Any) -> Any:
    """The family's config; `changes` go on top."""
    from transformers import AutoConfig

    kind, own = FAMILIES[family]
    return AutoConfig.for_model(kind, **{**_COMMON, **own, **changes})


def model(family: str, *, dtype: torch.dtype = torch.float64, seed: int = 0, **changes: Any) -> Any:
    """A random model of about 5,000 parameters in eval mode; biases and norms are random too."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    # The fused expert kernels know no float64.
    made = AutoModelForCausalLM.from_config(config(family, **changes), experts_implementation="eager")
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return made.to(dtype).eval()


@contextmanager
def float64_llama() -> Iterator[None]:
    """Keep Llama's norm and rotary embedding in float64; transformers casts both to float32 inside."""
    from transformers.models.llama import modeling_llama

    def norm(self: Any, hidden: torch.Tensor) -> torch.Tensor:
        return self.weight * hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)

    def rotary(self: Any, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = position_ids[..., None].double() * self.inv_freq.double()
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos(), angles.sin()

    before = modeling_llama.LlamaRMSNorm.forward, modeling_llama.LlamaRotaryEmbedding.forward
    modeling_llama.LlamaRMSNorm.forward = norm
    modeling_llama.LlamaRotaryEmbedding.forward = rotary
    try:
        yield
    finally:
        modeling_llama.LlamaRMSNorm.forward, modeling_llama.LlamaRotaryEmbedding.forward = before


def _group(prompt: list[int], *rows: tuple[list[int], float | None]) -> list[Row]:
    return [Row(prompt, answer, [1] * len(answer), reward) for answer, reward in rows]


def _episodes(prompt: list[int], *rows: tuple[list[int], list[int], float | None]) -> list[Row]:
    return [Row(prompt, answer, mask, reward) for answer, mask, reward in rows]


SHAPES: dict[str, list[Row]] = {
    "ragged": _group([5, 6, 7], ([12, 13, 14], 0.0), ([12, 13, 15, 16], 1.0), ([20], 0.0), ([12, 17, 18, 19, 12], 0.3)),
    "duplicates": _group([8, 9], ([21, 22], 1.0), ([21, 22], 1.0), ([21, 22], 0.0), ([23, 21, 22], 0.5)),
    "prefixes": _group([4], ([24], 0.0), ([24, 25], 1.0), ([24, 25, 26], 0.0), ([24, 25, 26, 24, 25, 26], 1.0)),
    "environment": _episodes(  # rows 0 and 1 share an observation; row 2 sampled what row 0 was given
        [10, 11],
        ([30, 31, 32, 33], [1, 0, 0, 1], 1.0),
        ([30, 31, 32, 34, 35], [1, 0, 0, 1, 1], 0.0),
        ([30, 31, 32, 33], [1, 1, 1, 1], 0.0),
        ([30, 36, 37, 33], [1, 0, 0, 1], 0.7),
    ),
    "unscored": _group([5, 6], ([27, 28], None), ([27, 28, 29], 1.0), ([27, 29], 0.0), ([27, 28], None)),
    "alone": _group([3, 7], ([2, 9], 1.0), ([2, 9], None)),
    "nothing": _group([3, 8], ([2, 9], None), ([2], None)),
    "empty": _group([6, 6], ([], 0.0), ([38, 39], 1.0), ([], 1.0)),
    "equal": _group([9, 4, 9], ([14, 13], 0.95), ([14, 13, 12], 0.95), ([12], 0.95)),
}


def random_group(generator: np.random.Generator, *, size: int, longest: int, alphabet: int = 3) -> list[Row]:
    """A group over few token ids, so that prefixes are shared by chance; any reward may be missing."""
    prompt = generator.integers(2, VOCABULARY, generator.integers(1, 4)).tolist()
    rows = []
    for _ in range(size):
        answer = generator.integers(2, 2 + alphabet, generator.integers(0, longest + 1)).tolist()
        mask = generator.choice([0, 1, 1, 1], len(answer)).tolist()
        if answer and not any(mask):
            mask[0] = 1  # an answer without any sampled token is no answer
        reward = [None, 0.0, 0.0, 1.0, 1.0, 0.37][generator.integers(6)]
        rows.append(Row(prompt, answer, mask, reward))
    return rows


def trajectory(row: Row) -> Trajectory:
    """The same row as treewise's own type; its sampling log-probs are the row's old ones (0 without)."""
    before = len(row.prompt)
    sampled = np.array([False] * before + [bool(m) for m in row.mask])
    old = np.zeros(len(row.completion)) if row.old is None else np.array(row.old)
    return Trajectory(
        tokens=np.array([*row.prompt, *row.completion], dtype=np.int64),
        sampled=sampled,
        logprobs=np.where(sampled, np.concatenate([np.zeros(before), old]), 0.0),
        text="",
        reward=row.reward,
        stop_reason="eos",
        cause="test" if row.reward is None else None,
    )


def group(rows: Sequence[Row], number: int = 0) -> Group:
    """Rows of the oracle as a treewise group."""
    return Group(Problem(id=str(number), prompt=""), tuple(trajectory(row) for row in rows))


def gradients(module: nn.Module) -> dict[str, torch.Tensor]:
    """Every parameter's gradient, zeros where there is none, and reset them."""
    found = {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in module.named_parameters()}
    module.zero_grad(set_to_none=True)
    return found
