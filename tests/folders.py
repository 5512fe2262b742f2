"""A tiny chat model as an ordinary folder on disk: what a run needs, made without a network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789 +-=?.:\nAN"
CONTROL = ["<|end|>", "<|user|>", "<|assistant|>"]
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """One token per character, and a chat template."""
    vocabulary = {token: number for number, token in enumerate([*CONTROL, *CHARACTERS])}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.Sequence([])
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens(CONTROL)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>", pad_token="<|end|>")
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def write_tiny_model(folder: Path, **options: Any) -> Path:
    """A random Llama of two layers with the tokenizer above; the same weights on every call."""
    torch.manual_seed(0)
    tokenizer = tiny_tokenizer()
    config = LlamaConfig(
        **{
            "vocab_size": len(tokenizer),
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 256,
            "tie_word_embeddings": True,
            "bos_token_id": None,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.eos_token_id,
            **options,
        }
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_problems(path: Path, count: int) -> Path:
    """Sums such as `3+4=?` with their answers."""
    rows = [{"problem": f"{n % 7}+{n % 5}=?", "answer": str(n % 7 + n % 5)} for n in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
