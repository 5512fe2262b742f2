"""A right answer in any usual notation is right, and no way to name several answers is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rewritings import notations, replies, wrong_replies
from treewise.reward.math import MathVerifier

SHARED = Path(__file__).parents[2] / "shared" / "data"
BENCHMARKS = ("aime24", "amc23", "minerva_math", "math500", "olympiadbench")
# One or two of each kind of answer that the benchmarks have.
GOLDS = (
    *("204", "-7", "0", "12345", "0.35625", ".0000672", "1/2", r"-\frac{7}{12}", r"\frac{270}7", "4.5e33", "1e-5"),
    *(r"58,500", r"11,\!080", r"\$32,\!348", r"8 \%", "62.5%", "204_5", "4210_{5}", r"90^\circ", r"44^{\circ}"),
    *(r"\text{Evelyn}", r"\text{(C)}", r"3\sqrt{13}", r"11\sqrt2", r"\frac{\sqrt{3}}{3}", r"288 \pi", r"\frac{\pi}{2}"),
    *("6 - 5i", "x^3+3x-6", "(a+5)(b+2)", "x=5", "y = 2x + 3", "f(x)=2 x", "5x - 7y + 11z + 4 = 0", "1,-2", "3, 5, 7"),
    *(r"(6,31,-1)", r"\left( 3, \frac{\pi}{2} \right)", "(1,8,19), (2,7,13), (4,5,7)", "(3,4]", r"(-\infty, 0]"),
    *(r"(-\infty, 2) \cup (3, \infty)", r"1 \pm \sqrt{19}", r"\begin{pmatrix} -1/3 \\ 2/3 \\ 5/3 \end{pmatrix}"),
    *(
        r"\frac{e^{t}} {3}+c e^{-2 t}",
        r"\left\lfloor\log _{2} n\right\rfloor+1",
        r"m \frac{d v}{d t}+b v=f",
        "2^{1009}",
    ),
)


@pytest.fixture(scope="module")
def verifier() -> Iterator[MathVerifier]:
    verifier = MathVerifier()
    yield verifier
    verifier.close()


@pytest.mark.parametrize("gold", GOLDS)
def test_an_answer_is_right_in_every_notation(verifier: MathVerifier, gold: str) -> None:
    assert len(replies(gold)) >= 10
    assert [reply for reply in replies(gold) if not verifier.verify(gold=gold, answer=reply).correct] == []


@pytest.mark.parametrize("gold", GOLDS)
def test_an_answer_among_others_is_wrong(verifier: MathVerifier, gold: str) -> None:
    tried = wrong_replies(gold, "What is $a+b$ if $a=17$ and $b=25$?")
    assert [reply for reply in tried if verifier.verify(gold=gold, answer=reply).correct is not False] == []


def test_notations_differ() -> None:
    assert len(notations("1/2")) >= 7
    assert "0.5" in notations("1/2")


@pytest.mark.parametrize("name", BENCHMARKS)
@pytest.mark.skipif(not SHARED.is_dir(), reason="the benchmarks' problems are not in the repository")
def test_of_a_whole_benchmark_no_rewriting_is_wrong_and_no_trick_is_right(verifier: MathVerifier, name: str) -> None:
    faults = []
    for line in (SHARED / f"{name}.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        tried = [(reply, True) for reply in replies(row["answer"])]
        tried += [(reply, False) for reply in wrong_replies(row["answer"], row["problem"])]
        for reply, right in tried:
            found = verifier.verify(gold=row["answer"], answer=reply)
            if found.correct is not right:
                faults.append((row["id"], reply, found))
    assert faults == []
