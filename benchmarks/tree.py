"""Time of the prefix tree and of credit: `python benchmarks/tree.py`.

Random trees of G answers that leave a common stem at random places, up to 64 answers of 30,000 tokens. The
median of five runs is printed, in seconds, in nanoseconds per token, and beside the paper's 1.2e-7 s per token
(arXiv 2509.21154, which measured its own implementation on its own machine).
"""

from __future__ import annotations

import platform
import statistics
import time

import numpy as np

from treewise.credit import coefficients, process_rewards
from treewise.tree import build_tree

PAPER = 1.2e-7  # seconds per token
SHAPES = [(8, 256), (8, 4_000), (64, 4_000), (64, 30_000)]
RUNS = 5


def group(size: int, length: int, seed: int = 0) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Answers of `length` tokens; each follows an earlier one up to a random place."""
    generator = np.random.default_rng(seed)
    rows = [generator.integers(0, 50_000, length)]
    for _ in range(size - 1):
        row = rows[generator.integers(len(rows))].copy()
        leaves = generator.integers(length)
        row[leaves:] = generator.integers(0, 50_000, length - leaves)
        rows.append(row)
    return rows, [np.ones(length, dtype=bool)] * size


def main() -> None:
    """Print the table."""
    print(f"NumPy {np.__version__}, Python {platform.python_version()}, {platform.processor() or platform.machine()}")
    print(f"{'G':>4} {'tokens each':>12} {'tree s':>9} {'credit s':>9} {'ns/token':>9} {'÷ paper':>8}")
    for size, length in SHAPES:
        tokens, sampled = group(size, length)
        rewards = np.random.default_rng(1).random(size)
        trees, credits = [], []
        for _ in range(RUNS):
            start = time.perf_counter()
            tree = build_tree(tokens, sampled)
            built = time.perf_counter()
            coefficients(tree, exponent=1.0, aggregation="token")
            process_rewards(tree, rewards)
            trees.append(built - start)
            credits.append(time.perf_counter() - built)
        both = statistics.median(trees) + statistics.median(credits)
        per_token = both / (size * length)
        print(
            f"{size:>4} {length:>12,} {statistics.median(trees):>9.4f} {statistics.median(credits):>9.4f} "
            f"{1e9 * per_token:>9.1f} {per_token / PAPER:>8.2f}"
        )


if __name__ == "__main__":
    main()
