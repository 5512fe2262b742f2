"""Whether the problems of a benchmark are the ones that everybody means by its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from treewise.benchmarks import BENCHMARKS, difference, fingerprint, load

SHARED = Path(__file__).parents[2] / "shared" / "data"
FILES = {"minerva": "minerva_math.jsonl", "gsm8k": "gsm8k_test.jsonl"}


def test_a_fingerprint_is_that_of_the_letters_and_digits() -> None:
    assert fingerprint(["What is $2+3$?", "Why?"]) == fingerprint(["why", "What is  2 + 3"])
    assert fingerprint(["What is 2+3?"]) != fingerprint(["What is 2+4?"])


@pytest.mark.parametrize("name", BENCHMARKS)
@pytest.mark.skipif(not SHARED.is_dir(), reason="the benchmarks' problems are not in the repository")
def test_the_known_files_are_the_benchmarks(name: str) -> None:
    benchmark, file = BENCHMARKS[name], SHARED / FILES.get(name, f"{name}.jsonl")
    problems = load(benchmark, file=str(file), chat=True, system="Think.")
    assert difference(benchmark, problems) is None
    assert difference(benchmark, problems[:5]) == f"5 of {benchmark.count} problems"
    changed = [*problems[1:], problems[1]]
    assert "other questions" in str(difference(benchmark, changed))
