"""Tree against rows for one group whose answers share the prompt: `python benchmarks/attention.py`.

Forward and backward of a model of SmolLM2-135M's shape with random weights, float32, one thread, G = 8. Both paths are
treewise's own, on the same trajectories, alternating; the median of three counted passes each. `ideal` is padded ÷
unique tokens, what the arithmetic alone would give. Use `--dtype bfloat16` and `--threads 2` for other settings.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from treewise.axes import Objective
from treewise.credit import credit
from treewise.packing import pack
from treewise.policy import Policy
from treewise.types import Group, Problem, Trajectory

SHAPES = [(64, 64), (256, 64), (1024, 64), (64, 256), (256, 256), (1024, 256)]
VOCABULARY = 49_152


def group(prompt: int, new: int, size: int) -> Group:
    """Answers that differ from their first token on."""
    generator = np.random.default_rng(0)
    shared = generator.integers(0, VOCABULARY, prompt)
    trajectories = []
    for number in range(size):
        tokens = np.concatenate([shared, [number], generator.integers(0, VOCABULARY, new - 1)])
        sampled = np.arange(len(tokens)) >= prompt
        trajectories.append(Trajectory(tokens, sampled, np.zeros(len(tokens)), "", float(number), "length"))
    return Group(Problem("p", ""), tuple(trajectories))


def main() -> None:
    """Print one line a shape."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--passes", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model = LlamaForCausalLM(
        LlamaConfig(
            hidden_size=576,
            intermediate_size=1536,
            num_hidden_layers=30,
            num_attention_heads=9,
            num_key_value_heads=3,
            vocab_size=VOCABULARY,
            tie_word_embeddings=True,
            max_position_embeddings=8192,
        )
    ).to(getattr(torch, arguments.dtype))
    # They share the model; without a tree its attention is SDPA.
    policies = {name: Policy(model, 1.0, VOCABULARY, path=name) for name in ("tree", "flat")}
    print(
        f"torch {torch.__version__}, {arguments.threads} thread(s), {arguments.dtype}, G = {arguments.group_size}, "
        f"{torch.backends.cpu.get_cpu_capability()}, {platform.machine()}"
    )
    print(f"{'prompt + new':>13} {'ideal':>6} {'rows s':>8} {'tree s':>8} {'faster':>7} {'÷ ideal':>8}")
    for prompt, new in SHAPES:
        credited = credit([group(prompt, new, arguments.group_size)], Objective())
        times: dict[str, list[float]] = {name: [] for name in policies}
        batches = {name: pack(credited, denominator=1.0, budget=10**6, flat=name == "flat") for name in policies}
        for number in range(arguments.passes + 1):  # the first one warms up
            for name, policy in policies.items():
                start = time.perf_counter()
                for batch in batches[name]:
                    policy.logprobs(batch).sum().backward()
                if number:
                    times[name].append(time.perf_counter() - start)
                model.zero_grad()
        ideal = arguments.group_size * (prompt + new) / (prompt + arguments.group_size * new)
        slow, fast = statistics.median(times["flat"]), statistics.median(times["tree"])
        print(
            f"{f'{prompt} + {new}':>13} {ideal:>6.2f} {slow:>8.2f} {fast:>8.2f} {slow / fast:>7.2f} "
            f"{slow / fast / ideal:>8.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
