"""Mathematical answers: which are equal, which are not, and where in a reply they stand. The pairs are our own."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from treewise.reward import latex, units
from treewise.reward.extract import answer_text, gold_text
from treewise.reward.math import MathVerifier

SHARED = Path(__file__).parents[1].parent / "shared"
PATIENT = 120.0  # seconds: a busy machine is not an error here
WRAPPINGS = (
    "{}", "${}$", r"\boxed{{{}}}", "The answer is {}.", "So the final answer is: $\\displaystyle {}$.",
    "First I add.\n\n**Answer:** ${}$", "I add. Therefore, the answer is \\({}\\), since 2 is prime.",
    "We get\n\\[\n{}\n\\]", "The final answer is $\\boxed{{{}}}$. I hope it is correct.",
    "**Final answer**\n$$\n{}\n$$",
)  # fmt: skip

# kind → gold answer → (equal answers, unequal answers)
TABLE: dict[str, dict[str, tuple[list[str], list[str]]]] = {
    "scientific notation": {
        "4.5e33": (["4.5 \\times 10^{33}", "4.5 \\cdot 10^{33}", "45e32", "4.5E+33"], ["4.5e32", "148.5e", "4.5"]),
        "1e-8": (["10^{-8}", "0.00000001", "1.0 \\times 10^{-8}"], ["1e-7", "e-8", "0", "-8"]),
        "2e6": (["2000000", "2,000,000"], ["12e", "2e", "2^6"]),
        "0.031": (["3.1e-2", "3.1 × 10^-2"], ["3.1e-3", "3.1e2"]),
    },
    "tiny and huge numbers": {
        "\\frac{1}{3^{80}}": (["3^{-80}"], ["\\frac{1}{3^{81}}", "0"]),
        "\\frac{1}{900!}": (["\\frac{900}{900! \\cdot 900}"], ["\\frac{1}{901!}", "0"]),
        "0.0000002": (["2e-7"], ["0.0000003", "0"]),
        "7.25e-11": (["7.25 \\times 10^{-11}"], ["7.26e-11"]),
        "3^{50}": (["9^{25}"], ["3^{50}+1", "3^{51}"]),
        "60!-1": (["60!-2+1"], ["60!"]),
        "10^{20}x": (["x \\cdot 10^{20}"], ["(10^{20}+1)x"]),
        "\\frac{x}{10^{20}}": ([], ["\\frac{2x}{10^{20}}"]),
        "12345678.9": ([], ["12345678.8"]),
    },
    "decimals": {
        "\\frac{1}{7}": (["0.142857142857", "0.142857"], ["0.1429", "0.142858"]),
        "\\sqrt{2}": (["1.41421356", "2^{0.5}"], ["1.41", "1.41421376"]),
        "0.5\\pi": (["\\frac{\\pi}{2}"], ["1.57"]),
        "2.5": (["2.50", "\\frac52", "2.500000000"], ["2.51", "25"]),
        ".75": (["0.75", "3/4"], ["75"]),
        "-1./3": (["-\\frac{1}{3}"], ["-0.1", "1/3"]),
    },
    "repeating decimals": {
        "\\frac{1}{6}": (["0.1\\overline{6}", "0.1666\\ldots"], ["0.\\overline{16}", "0.16"]),
        "0.\\overline{45}": (["\\frac{5}{11}"], ["0.45", "0.\\overline{54}"]),
        "2.\\overline{3}": (["\\frac73", "2\\frac13"], ["2.3"]),
    },
    "mixed numbers": {
        "\\frac{11}{4}": (["2 3/4", "2\\frac{3}{4}", "2 \\tfrac34", "2.75"], ["2 1/4", "\\frac{23}{4}", "3/2"]),
        "-1\\frac{1}{2}": (["-1.5", "-3/2"], ["-\\frac12", "1.5", "-0.5"]),
        "137 \\frac{1}{2}": (["137.5", "\\frac{275}{2}"], ["\\frac{137}{2}"]),
    },
    "thousands": {
        "12,345": (["12345", "12,\\!345", "12{,}345", "12 345", "12\\,345"], ["12", "12.345", "345", "(12,345)"]),
        "\\frac{1}{2,500}": (["\\frac{1}{2500}", "\\frac{1}{2{,}500}"], ["\\frac{1}{2}"]),
        "10,000\\pi": (["10000 \\pi"], ["10\\pi"]),
        "1, 234": ([], ["1234"]),
    },
    "bases": {
        "312_4": (["312_{4}", "312_{\\text{four}}", "(312)_4", "312"], ["312_5", "321_4", "54", "3124"]),
        "1011_2": (["1011_{2}"], ["1011_3", "11", "1101_2"]),
    },
    "units and letters": {
        "7\\text{ cm}": (["7", "7 cm", "7\\,\\mathrm{cm}", "7 centimeters"], ["7\\text{ mm}", "7c", "0.7"]),
        "12": (["12 apples", "\\text{12 apples}", "12 square units", "\\$12", "12 dollars"], ["12t", "12m", "12 + h"]),
        "15\\mbox{ cm}^2": (["15", "15\\text{ cm}^2", "15 square centimeters"], ["15\\text{ cm}^3", "225"]),
        "\\frac{1}{h} t": (["\\frac{t}{h}"], ["\\frac{1}{h}", "t"]),
        "3t": (["t \\cdot 3"], ["3", "3h"]),
        "a+b+c": (["b + c + a"], ["a+b+d", "a+b"]),
        "2x+s": (["s+2x"], ["2x", "2x+m"]),
        "35^{\\circ}": (["35", "35^\\circ", "35°", "35 degrees"], ["53^\\circ", "35\\text{ cm}"]),
        "\\cos^2 t": (["(\\cos t)^2", "1-\\sin^2 t"], ["\\cos^2", "\\cos^2 s"]),
    },
    "fragments": {
        "\\frac{1}{3} E_{1}+\\frac{2}{3} E_{2}": (["\\frac{E_1 + 2E_2}{3}"], ["\\frac{2}{3}", "\\frac13", "E_1"]),
        "\\hbar \\omega(n+1/2)": (["\\hbar\\omega\\left(n+\\frac12\\right)"], ["2", "1/2", "\\hbar\\omega(n-1/2)"]),
        "m c^{2}(\\gamma-1)": (["(\\gamma-1)mc^2"], ["m c^{2}(\\gamma+1)", "1", "mc^2"]),
        "1 + \\text{(see 4": ([], []),
    },
    "lists": {
        "3, 5 \\text{ and } 9": (
            ["9, 5, 3", "$3$, $5$, $9$", "3,5,9", "\\{3,5,9\\}"],
            ["3, 5", "3, 5, 8", "9", "3,5,9,9"]),
        "x=1 \\text{ or } x=4": (["1, 4", "x = 4, x = 1", "x=4 \\lor x=1", "1 and 4"], ["1", "x=1", "x = 1, x = 5"]),
        "(1,2),(3,4)": (["(3,4), (1,2)"], ["1,2,3,4", "(2,1),(3,4)", "(1,2)"]),
        "-3": (["-3, -3"], ["-3, 3", "3", "-3 \\text{ or } 4"]),
        "1,3,\\ldots,2n-1": (["1, 3, \\dots, 2n-1"], ["1,2,\\ldots,n", "1,3", "1,3,\\ldots,2n+1"]),
        "100, 200, 300": ([], ["100, 200", "300, 100"]),
    },
    "plus and minus": {
        "\\pm 6": (["6, -6", "-6, 6", "x = \\pm 6"], ["6", "-6", "\\pm 5"]),
        "2 \\pm \\sqrt{3}": (["2+\\sqrt3, 2-\\sqrt3"], ["2+\\sqrt{3}", "2 \\pm \\sqrt{2}"]),
    },
    "tuples, intervals, sets": {
        "(2, -1)": (
            ["(2,-1)", "\\left(2,\\,-1\\right)", "(x, y) = (2, -1)", "(4/2, -1)"],
            ["(-1, 2)", "\\{2,-1\\}", "(2, 1)", "2"]),
        "[0, 3)": (["\\left[0,3\\right)", "x \\in [0,3)"], ["[0,3]", "(0,3)", "[0,2)", "3"]),
        "\\{1, 2\\}": (["\\{2,1\\}", "\\{1,1,2\\}"], ["\\{1\\}", "\\{1,2,3\\}"]),
        "(0,1) \\cup (2,\\infty)": (
            ["(0,1)\\cup(2,+\\infty)", "(2,\\infty) \\cup (0,1)"],
            ["(0,1)", "(0,1] \\cup (2,\\infty)"]),
        "\\emptyset": (["\\varnothing", "\\{\\}", "∅"], ["0", "\\{0\\}"]),
        "\\begin{pmatrix} 1 \\\\ 2/3 \\end{pmatrix}": (
            ["\\begin{pmatrix}1\\\\ \\frac23\\end{pmatrix}"],
            ["\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}"]),
    },
    "conditions": {
        "-2<x<2": (["|x|<2", "2 > x > -2", "(-2,2)"], ["|x| \\le 2", "x<2", "-2<x<3"]),
        "x \\ge 5": (["5 \\le x", "[5,\\infty)"], ["x > 5", "x \\ge 4", "5"]),
        "n \\equiv 2 \\pmod 7": (
            ["n \\equiv 9 \\pmod{7}", "n \\equiv -5 \\bmod 7"],
            ["2", "n \\equiv 2 \\pmod 6", "n \\equiv 3 \\pmod 7"]),
        "y = 3x - 1": (["3x-1", "y - 3x = -1", "y=3(x-1)+2"], ["y = 3x + 1", "-1", "y=3x"]),
        "2a+b=4": ([], ["4", "2a+b=5"]),
        "8": (["x=8", "3+5=8"], ["x=9", "8=7"]),
        "x=8": (["8"], ["y=8", "x=9", "x"]),
    },
    "times, ratios": {
        "7:45\\text{ am}": (["7:45", "7:45 AM", "7:45 a.m."], ["7:45\\text{ pm}", "7:54", "45"]),
        "3:4": (["6:8", "\\frac34", "3 : 4", "0.75"], ["4:3", "3:5", "34"]),
        "1:2:3": (["2:4:6"], ["1:2:4", "1:6", "3:2:1"]),
    },
    "percents": {
        "35\\%": (["35%", "35 percent", "0.35", "35"], ["3.5%", "0.35%", "53"]),
        "0.4": (["40\\%", "2/5"], ["0.4\\%", "4%"]),
    },
    "complex numbers": {
        "3i": (["\\sqrt{-9}", "i \\cdot 3", "3 \\mathrm{i}"], ["3j", "3", "-3i", "3I"]),
        "\\frac{2}{1-i}": (["1+i"], ["1-i", "2"]),
    },
    "words and choices": {
        "\\text{Tuesday}": (["tuesday", "Tuesday", "\\textbf{Tuesday}"], ["\\text{Thursday}", "t", "2"]),
        "\\text{east}": (["East"], ["\\text{seat}", "seat", "west", "-\\text{east}"]),
        "B": (["(B)", "\\text{(B)}", "\\textbf{(B)}\\ 17", "B. 17", "b"], ["C", "\\textbf{(A)} B", "17", "AB"]),
        "\\textbf{(D)}\\ 9": (["D", "(D)", "9", "(D) 9"], ["E", "(D) 8", "(E) 9"]),
        "\\overline{PQ}": (["PQ"], ["PR"]),
        "\\angle ABC": (["\\angle\\,ABC"], ["\\angle ACB", "ABC"]),
    },
    "expressions": {
        "\\frac{x^2-9}{x-3}": (["x+3"], ["x-3", "x^2-9"]),
        "a^2b^2+c": (["c + (ab)^2"], ["a^{2b^2}+c"]),
        "2^3^2": (["512"], ["64"]),
        "\\pi R^2": (["R^2\\pi"], ["\\pi r^2", "\\pi R^3"]),
        "p-q": (["-q+p"], ["q-p", "-p-q"]),
        "f'(x)": (["f^{\\prime}(x)"], ["f(x)", "f'(y)"]),
        "\\frac{dy}{dx}=ky": (["\\frac{d y}{d x}=k y"], ["\\frac{dz}{dx}=kz"]),
        "A^T": ([], ["A"]),
        "\\frac\\pi 4": (["\\arctan 1", "\\frac{\\pi}{4}"], ["\\frac{\\pi}{5}", "\\frac{9\\pi}{4}"]),
        "4\\sqrt3": (["4 \\cdot 3^{1/2}", "\\sqrt{48}", "4sqrt(3)"], ["4", "3\\sqrt4"]),
        "5": (["5.", "\\text{5}", "\\mathbf{5}", "005", "\\frac{10}{2}"], ["1/0", "2 3", "5_6x", "5^5^"]),
        "\\binom{n}{2}": (["\\frac{n(n-1)}{2}"], ["n(n-1)"]),
        "\\log_{\\frac{1}{2}} x": (["\\log_\\frac12 x"], ["\\log_2 x"]),
        "\\frac{5 L_{\\odot}}{c^2}": (["5L_\\odot/c^2"], ["5L/c^2", "5L_\\oplus/c^2"]),
    },
    "dates and times": {
        "\\text{9:40 a.m.}": (["9:40 AM", "9:40", "\\text{9:40 am}"], ["9:40 PM", "9:04 AM"]),
        "\\text{7:00 p.m.}": (["7 PM", "7 p.m.", "7:00pm"], ["7 AM", "7:30 PM", "7"]),
        "\\text{May 9}": (["May 9th", "9 May", "the 9th of May"], ["May 19", "March 9", "9"]),
        "\\text{August 2, 1998}": (["2 August 1998", "Aug. 2, 1998"], ["August 2, 1989", "August 2"]),
    },
    "other units": {
        "1.2 \\text{ kg}": (["1200 \\text{ g}", "1.2"], ["120 \\text{ g}", "1200", "1.2 \\text{ g}"]),
        "4 \\text{ ft}": (["48 inches"], ["4 inches"]),
        "3 \\text{ m}^2": (["30000 \\text{ cm}^2"], ["300 \\text{ cm}^2"]),
        "90 \\text{ min}": (["1.5 hours"], ["1.5 min"]),
        "\\frac{3\\pi}{4}": (["135^\\circ"], ["45^\\circ", "135"]),
        "30^\\circ": (["\\frac{\\pi}{6}"], ["\\frac{\\pi}{3}", "30 \\text{ rad}"]),
    },
    "words for values": {
        "8": (["eight", "\\text{Eight}"], ["nine", "eighteen"]),
        "\\text{twenty-three}": (["23"], ["32"]),
        "5:2": (["5 to 2", "10 to 4"], ["2 to 5"]),
        "D": (["Option D", "choice (D)"], ["Option B"]),
        "(-\\infty,\\infty)": (["all real numbers", "\\mathbb{R}", "x \\in \\mathbb{R}"], ["(0,\\infty)"]),
        "\\emptyset": (["no solution", "\\text{no real solutions}", "\\{\\}"], ["0", "\\{0\\}"]),
    },
    "vectors and cases": {
        "(4,0,-1)": (["\\langle 4, 0, -1 \\rangle"], ["\\langle 4, 0, 1 \\rangle", "\\langle 0, 4, -1 \\rangle"]),
        "\\begin{cases} x & \\text{if } x > 2 \\\\ 7 & \\text{otherwise} \\end{cases}": (
            ["\\begin{cases} 7 & \\text{else} \\\\ x & x>2 \\end{cases}"],
            ["\\begin{cases} 7 & x > 2 \\\\ x & \\text{else} \\end{cases}", "x", "7"],
        ),
        "\\text{B7}_{12}": (["B7_{12}"], ["B7_{13}", "7B_{12}"]),
        "0.\\overline{6}": (["0.666..."], ["0.6"]),
    },
}  # fmt: skip
PAIRS = [
    pytest.param(gold, answer, expected, id=f"{kind}: {gold} ? {answer}")
    for kind, golds in TABLE.items()
    for gold, sides in golds.items()
    for expected, answers in zip((True, False), sides, strict=True)
    for answer in answers
]


@pytest.fixture(scope="module")
def verifier() -> Iterator[MathVerifier]:
    made = MathVerifier(deadline=PATIENT)
    yield made
    made.close()


@pytest.mark.parametrize(("gold", "answer", "expected"), PAIRS)
def test_pairs(verifier: MathVerifier, gold: str, answer: str, expected: bool) -> None:
    assert verifier.verify(gold=gold, answer=rf"\boxed{{{answer}}}").correct is expected


def test_the_order_of_gold_and_answer_matters(verifier: MathVerifier) -> None:
    assert verifier.verify(gold="x > 4", answer=r"\boxed{(4,\infty)}").correct is True
    assert verifier.verify(gold=r"(4,\infty)", answer=r"\boxed{x > 4}").correct is False
    assert verifier.verify(gold="12", answer=r"\boxed{a+b=12}").correct is True
    assert verifier.verify(gold="2a+b=12", answer=r"\boxed{12}").correct is False


def test_what_has_no_value_is_wrong_as_an_answer_and_no_verdict_as_gold(verifier: MathVerifier) -> None:
    for text in (r"\frac{1}{0}", "(", r"3 \cdot"):
        assert verifier.verify(gold="4", answer=rf"\boxed{{{text}}}") == (False, "the answer can't be parsed")
        assert verifier.verify(gold=text, answer=r"\boxed{4}") == (None, "the gold answer can't be parsed")
    assert verifier.verify(gold="4", answer=r"\boxed{dunno}").cause == "the answer can't be parsed"
    assert verifier.verify(gold="4", answer=rf"\boxed{{{'4+' * 5000}4}}") == (False, "the answer is too long")


@pytest.mark.parametrize(
    ("gold", "reply", "correct"),
    [
        ("1.5e11", r"\boxed{1.5 \times 10^{11}}", True),
        ("$12$,$30$", r"\boxed{30, 12}", True),
        ("$12$,$30$", r"\boxed{12}", False),
        ("np.arctan(3/4)", r"\boxed{\arctan\frac{3}{4}}", True),
        (r"so $E = \boxed{2e-5} \mathrm{~J}$", r"\boxed{0.00002}", True),
        ("$f(x)=2x+b$, where $b$ is any integer", r"\boxed{f(x) = b + 2x}", True),
        ("5", r"\boxed{4} or \boxed{5}", False),
        ("4, 5", r"\boxed{4} and \boxed{5}", True),
        ("5", r"I thought \boxed{4}. But no: \boxed{5}", True),
        ("4", r"I thought \boxed{4}. But no: \boxed{5}", False),
        ("x+y=3", r"\boxed{3}", False),
        ("x+y+z=0", r"\boxed{0}", False),
        ("ab=12", r"\boxed{12}", False),
        ("2x+z=1", r"\boxed{1}", False),
        ("x+y=3", r"\boxed{y = 3 - x}", True),
        ("AB=12", r"\boxed{12}", True),
        (r"\frac{dx}{dt}=kx", r"\boxed{k x}", True),
        ("3", r"\boxed{x+y=3}", True),  # what was asked for may be called anything
        ("5", "So there are 5 of them.", True),  # the only number of prose
        ("5", "It is 4 or 5.", False),
        ("4", "the answer is 4 or 5", False),
    ],
)
def test_golds_and_replies_as_they_are_found(verifier: MathVerifier, gold: str, reply: str, correct: bool) -> None:
    assert verifier.verify(gold=gold, answer=reply).correct is correct


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_an_answer_is_found_in_every_wrapping(wrapping: str) -> None:
    for golds in TABLE.values():
        for gold in golds:
            if "(see" not in gold and "'" not in gold:
                assert latex.plain(answer_text(wrapping.format(gold))) == latex.plain(gold)


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("The answer is 5, so we are done.", "5"),
        ("The answer is 5 because 2 + 3 = 5.", "5"),
        ("The answer is 4, 5, and 6.", "4, 5, and 6."),
        ("The correct answer would be $x = 3$ metres.", "$x = 3$"),
        ("The answer is 3. I hope that helps with 7.", "3"),
        ("My first answer is 3. Now the answer is $4$", "$4$"),
        ("Hence $a=2$ and $b=3$, which gives $a+b=5$", ""),
        ("Hence there are $5$ of them.", "$5$"),
        ("The roots are $1$, $2$ and $3$.", "$1$, $2$ and $3$"),
        ("So she has 12 apples and 3,400 pears left.", ""),
        ("So she has 3,400 pears left.", "3,400"),
        ("Simplify $\\sqrt{242}$.", ""),
        ("What is $1^7$?", ""),
        ("\\boxed{$27$, 5}", "$27$, 5"),
        ("Answer: $27$ or 5", "$27$ or 5"),
        ("Therefore \\frac{3}{4} of it", "\\frac{3}{4}"),
        ("x = 7", "x = 7"),
        ("We are done.", ""),
        ("", ""),
        ("\\boxed{The answer is $\\frac97$.}", "$\\frac97$"),
        ("**Answer:** $x^2$ for all x", "$x^2$"),
        ("\\boxed{x^2 \\text{ if } x > 0}", "x^2 \\text{ if } x > 0"),
    ],
)
def test_where_the_answer_of_a_reply_is(reply: str, answer: str) -> None:
    assert answer_text(reply) == answer


def test_scans_of_hostile_replies_take_linear_time() -> None:
    started = time.process_time()
    in_replies = (
        "$",
        "$1",
        "\\(",
        "\\[",
        "answer ",
        "answer is ",
        "\\boxed{1} or ",
        "1,",
        "1+",
        "so ",
        "{",
        "\\frac{1}{",
    )
    for unit in in_replies:
        answer_text(unit * 50_000)
    for unit in ("1 ", "\\text{", "\\frac", "(", "1,", "cm ", "\\text{a}", "2\\frac{1}{3}", "_", "\\sqrt"):
        text = (unit * 2000)[:2000]
        latex.plain(text)
        units.without_unit(text)
        latex.parts(text)
        latex.bracketed(f"({text})")
    assert time.process_time() - started < 10


@pytest.mark.parametrize(
    ("text", "number", "unit"),
    [
        (r"10\text{ cm}", "10", "cm"),
        ("5 square feet", "5", "ft2"),
        (r"5\text{ ft}^2", "5", "ft2"),
        (r"9.8 \text{ m/s}^{2}", "9.8", "m s2"),
        ("6m", "6m", ""),
        ("3 x", "3 x", ""),
        (r"\text{cm}", r"\text{cm}", ""),
        ("5 apples", "5", ""),
        ("ab", "ab", ""),
    ],
)
def test_units(text: str, number: str, unit: str) -> None:
    assert units.without_unit(text) == (number, unit)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the data files are not beside the repository")
@pytest.mark.parametrize("name", ["math500", "minerva_math", "olympiadbench", "amc23", "aime24"])
def test_golds_of_benchmarks_are_right_against_themselves_and_wrong_when_changed(
    verifier: MathVerifier, name: str
) -> None:
    golds = [json.loads(line)["answer"] for line in (SHARED / "data" / f"{name}.jsonl").read_text().splitlines()]
    for number, gold in enumerate(golds):
        wrapping = WRAPPINGS[number % len(WRAPPINGS)] if "$" not in gold else r"\boxed{{{}}}"
        assert latex.plain(answer_text(wrapping.format(gold))) == latex.plain(gold_text(gold))
    chance = random.Random(0)
    for gold in chance.sample(golds, 8):
        assert verifier.verify(gold=gold, answer=rf"\boxed{{{gold}}}").correct is True
        digits = list(re.finditer(r"\d", gold))
        if digits:
            digit = chance.choice(digits)
            other = gold[: digit.start()] + str((int(digit[0]) + 1) % 10) + gold[digit.end() :]
            assert verifier.verify(gold=gold, answer=rf"\boxed{{{other}}}").correct is False


@pytest.mark.skipif(not SHARED.is_dir(), reason="the cases are not beside the repository")
def test_uncontested_pairs_of_the_shared_cases(verifier: MathVerifier) -> None:
    """All of them in one of four wrappings in turn; `scripts/answer_pairs.py` tries each in each."""
    pairs = [json.loads(line) for line in (SHARED / "cases" / "answer_pairs.jsonl").read_text().splitlines()]
    counted = [pair for pair in pairs if not pair.get("contested")]
    wrong = []
    for number, pair in enumerate(counted):
        wrapping = "{}" if pair["form"] == "text" else WRAPPINGS[number % 4]
        compared = verifier.verify(gold=pair["gold"], answer=wrapping.format(pair["answer"]))
        if compared.correct is not pair["expected"]:
            wrong.append((pair["id"], wrapping, compared))
    assert len(wrong) <= 0.1 * len(counted), wrong
