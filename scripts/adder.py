"""A language model of a million weights that half knows how to add, as a start for RL: `python scripts/adder.py`.

It learns worked sums of three numbers, character by character, from the training split of the built-in task `sums`,
and stops before it is good at them (about two minutes on one core). The same command gives the same weights on the same
machine. What it writes is an ordinary model folder, for experiments that need many runs:

    treewise reproduce ab --recipe scripts/adder.toml --seeds 20
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from treewise.tasks import sums

CHARACTERS = "0123456789 +=,:\nAnswer"
END = "<|end|>"
ROWS = 64


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token per character."""
    characters = dict.fromkeys(CHARACTERS)
    backend = Tokenizer(models.BPE(vocab={token: n for n, token in enumerate([END, *characters])}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.Sequence([])
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens([END])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=END, pad_token=END)


def worked(problem: str) -> str:
    """`7 + 2 + 5` → `7 + 2 = 9, 9 + 5 = 14` and the answer on a line of its own."""
    total, *rest = map(int, problem.split(" + "))
    steps = []
    for number in rest:
        steps.append(f"{total} + {number} = {total + number}")
        total += number
    return ", ".join(steps) + f"\nAnswer: {total}"


def main() -> None:
    """Train, and write the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--output", type=Path, default=Path("runs/adder"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tokenizer = make_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.eos_token_id,
    )
    model = LlamaForCausalLM(config)
    problems = [row["problem"] for row in sums(split="train", size=4000, terms=3, largest=20)]
    texts = [f"{problem}\n{worked(problem)}{END}" for problem in problems]
    rows = tokenizer(texts, padding=True, return_tensors="pt", padding_side="right")
    labels = rows.input_ids.masked_fill(rows.attention_mask == 0, -100)
    for number, problem in enumerate(problems):
        labels[number, : len(problem) + 1] = -100  # the problem is given, not learnt
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    generator = np.random.default_rng(0)
    for step in range(arguments.steps):
        chosen = torch.tensor(generator.choice(len(problems), ROWS, replace=False))
        loss = model(
            input_ids=rows.input_ids[chosen], attention_mask=rows.attention_mask[chosen], labels=labels[chosen]
        ).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 49:
            print(f"step {step + 1}: loss {loss.item():.3f}", flush=True)
    model.save_pretrained(arguments.output)
    tokenizer.save_pretrained(arguments.output)
    print(f"{sum(p.numel() for p in model.parameters()):,} weights in {arguments.output}")


if __name__ == "__main__":
    main()
