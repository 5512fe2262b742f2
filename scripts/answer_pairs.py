"""How often a verifier misjudges pairs of answers: `python scripts/answer_pairs.py PAIRS.jsonl [--bare-math-verify]`.

A line is {"id", "gold", "answer", "expected": true|false, "category", "form": "latex"|"text", "contested"?}. Each pair
is tried bare, between dollars, in a box and in a sentence; one of the form "text" is a whole reply, so it is tried as
it is. It counts as right only if it is right in every way. Contested pairs are listed, not counted.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from treewise.reward.math import Comparison, MathVerifier
from treewise.reward.worker import Worker, WorkerError

WRAPPINGS: Mapping[str, str] = {
    "bare": "{}",
    "dollars": "${}$",
    "boxed": r"\boxed{{{}}}",
    "sentence": "The answer is {}.",
    "dollars in a sentence": "So the final answer is ${}$.",
    "line": "First we simplify.\n\n**Answer:** ${}$",
}
COUNTED = tuple(WRAPPINGS)[:4]

Judge = Callable[[str, str], Comparison]


def judged(pairs: list[dict[str, Any]], judge: Judge) -> dict[tuple[str, str], Comparison]:
    """The verdict on every pair in every wrapping, by id and wrapping."""
    found = {}
    for number, pair in enumerate(pairs):
        print(f"\r{number + 1}/{len(pairs)}", end="", file=sys.stderr)
        wrappings = WRAPPINGS if pair.get("form") != "text" else {"bare": "{}"}
        for name, wrapping in wrappings.items():
            found[pair["id"], name] = judge(pair["gold"], wrapping.format(pair["answer"]))
    print(file=sys.stderr)
    return found


def bare_math_verify(*, gold: str, answer: str) -> bool:
    """math-verify alone, as its documentation uses it; the gold answer stands between dollars."""
    import math_verify

    parsed = [math_verify.parse(text, parsing_timeout=None) for text in (f"${gold}$", answer)]
    return bool(math_verify.verify(*parsed, timeout_seconds=None))


def in_worker(deadline: float) -> Judge:
    """It can hang, so it runs where it can be killed; a hang is no verdict."""
    worker = Worker("answer_pairs:bare_math_verify", warm_up={"gold": "1", "answer": "1"})

    def judge(gold: str, answer: str) -> Comparison:
        try:
            return Comparison(worker.call(deadline=deadline, gold=gold, answer=answer))
        except (TimeoutError, WorkerError) as error:
            return Comparison(None, str(error))

    return judge


def report(pairs: list[dict[str, Any]], found: Mapping[tuple[str, str], Comparison]) -> str:
    """Shares of wrong pairs, in any wrapping, per wrapping, per category; then every wrong one."""
    wrong = {
        key
        for key, compared in found.items()
        for pair in pairs
        if pair["id"] == key[0] and compared.correct is not pair["expected"]
    }
    counted = [pair for pair in pairs if not pair.get("contested")]
    bad = [pair for pair in counted if any((pair["id"], name) in wrong for name in COUNTED)]
    lines = [f"wrong in any of {', '.join(COUNTED)}: {len(bad)} of {len(counted)} ({len(bad) / len(counted):.1%})"]
    for name in WRAPPINGS:
        tried = [pair for pair in counted if (pair["id"], name) in found]
        lines.append(f"  {name}: {sum((pair['id'], name) in wrong for pair in tried)} of {len(tried)}")
    totals = Counter(pair["category"] for pair in counted)
    lines += [
        f"  {name}: {number} of {totals[name]}" for name, number in Counter(p["category"] for p in bad).most_common()
    ]
    for pair in pairs:
        where = [name for name in WRAPPINGS if (pair["id"], name) in wrong]
        if where:
            kind = "contested" if pair.get("contested") else pair["category"]
            causes = {str(found[pair["id"], name].cause) for name in where}
            lines.append(
                f"{pair['id']} {kind}: {pair['gold']}  |  {pair['answer']}  expected {pair['expected']};"
                f" {', '.join(where)}; {', '.join(sorted(causes))}"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", type=Path)
    parser.add_argument("--bare-math-verify", action="store_true", help="judge with math-verify alone, and compare")
    parser.add_argument(
        "--deadline", type=float, default=60.0, help="seconds per answer (default 60: a busy machine is no error)"
    )
    arguments = parser.parse_args()
    pairs = [json.loads(line) for line in arguments.pairs.read_text(encoding="utf-8").splitlines() if line.strip()]
    verifier = MathVerifier(deadline=arguments.deadline)
    ours = judged(pairs, lambda gold, answer: verifier.verify(gold=gold, answer=answer))
    verifier.close()
    print("treewise\n" + report(pairs, ours), flush=True)
    if arguments.bare_math_verify:
        theirs = judged(pairs, in_worker(arguments.deadline))
        print("\nmath-verify alone\n" + report(pairs, theirs))
        expected = {pair["id"]: pair["expected"] for pair in pairs}
        worse = [
            key for key in ours if theirs[key].correct is expected[key[0]] and ours[key].correct is not expected[key[0]]
        ]
        print(f"\nright with math-verify alone and wrong with treewise: {worse or 'none'}")


if __name__ == "__main__":
    main()
