"""`treewise verify`: recorded answers are scored row by row, and a bad row stops nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from treewise.cli import main
from treewise.reward import math as math_reward
from treewise.reward.math import MathVerifier
from treewise.verify import verify_lines

BAD: list[tuple[bytes, dict[str, Any]]] = [
    (b"not json", {"cause": "the line is not JSON (Expecting value: line 1 column 1 (char 0))"}),
    (b'{"gold": "1", "answer": "\xff"}', {"cause": "the line is not UTF-8"}),
    (b"[1, 2]", {"cause": "the line is a list, not an object"}),
    (b"null", {"cause": "the line is a null, not an object"}),
    (b"[" * 100_000, {}),
    (b'{"answer": "1", "id": 1}', {"id": 1, "cause": "the row has no gold"}),
    (b'{"gold": "1"}', {"cause": "the row has no answer"}),
    (b'{"gold": null, "answer": "1"}', {"cause": "the row has no gold"}),
    (b'{"gold": ["1"], "answer": "1"}', {"cause": "gold is a list, not a text or a number"}),
    (b'{"gold": true, "answer": "1"}', {"cause": "gold is a boolean, not a text or a number"}),
    (b'{"gold": NaN, "answer": "1"}', {"cause": "gold is nan"}),
    (b'{"gold": "1", "answer": {"text": "1"}}', {"cause": "answer is a object, not a text or a number"}),
]


@pytest.fixture(scope="module")
def verifier() -> Iterator[MathVerifier]:
    made = MathVerifier(deadline=60.0)
    yield made
    made.close()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is not an error here."""
    monkeypatch.setattr(math_reward.MathVerifier.__init__, "__kwdefaults__", {"deadline": 60.0})


def write(path: Path, *lines: bytes) -> str:
    path.write_bytes(b"\n".join(lines) + b"\n")
    return str(path)


@pytest.mark.parametrize(("line", "expected"), BAD)
def test_a_bad_row_has_no_verdict_but_a_cause_and_the_next_is_judged(
    verifier: MathVerifier, line: bytes, expected: dict[str, Any]
) -> None:
    bad, good = verify_lines([line, b'{"gold": "2", "answer": "2"}'], verifier)
    assert (bad.line, bad.readable, bad.columns["verdict"]) == (1, False, None)
    assert expected.items() <= bad.columns.items()
    assert bad.columns["cause"].isprintable()
    assert (good.line, good.readable, good.columns["verdict"]) == (2, True, True)


@pytest.mark.parametrize(
    ("gold", "answer", "verdict", "cause"),
    [
        ("1/2", "so \\boxed{0.5}", True, None),
        ("1/2", "\\boxed{2}", False, "not equal"),
        ("1/2", "", False, "no answer found"),
        ("1/2", "\\boxed{(}", False, "the answer can't be parsed"),
        ("1/2", "\\boxed{" + "1+" * 50_000 + "1}", False, "the answer is too long"),
        ("(", "7", None, "the gold answer can't be parsed"),
        ("", "7", None, "no gold answer"),
        (42, "\\boxed{42}", True, None),
        (42.0, 42, True, None),
        (0.1, "1/10", True, None),
        (1e-5, "\\boxed{10^{-5}}", True, None),
        (-0.25, "0.25", False, "not equal"),
        (10**30, "10^{30}", True, None),
        ("7", "\ud800 \x1b[31m \\boxed{7}", True, None),
    ],
)
def test_rows_are_judged(
    verifier: MathVerifier, gold: Any, answer: Any, verdict: bool | None, cause: str | None
) -> None:
    line = json.dumps({"gold": gold, "answer": answer}).encode()
    (row,) = verify_lines([line], verifier)
    assert row.columns == {"gold": gold, "answer": answer, "verdict": verdict, "cause": cause}
    assert row.readable


def test_a_row_that_is_nested_absurdly_is_named_and_the_next_is_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], patient: None
) -> None:
    deep = b'{"gold": "1", "answer": "1", "more": ' + b"[" * 900 + b"]" * 900 + b"}"
    assert main(["verify", write(tmp_path / "a.jsonl", deep, b'{"gold": "1", "answer": "1"}'), "--json"]) == 1
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["line"], first["verdict"]) == (1, None)
    assert second["verdict"] is True


def test_json_lines_keep_order_and_other_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], patient: None
) -> None:
    rows = [{"gold": str(n), "answer": "2", "id": n, "more": {"x": [None, float("nan")]}} for n in (1, 2, 3)]
    path = write(tmp_path / "a.jsonl", *(json.dumps(row).encode() for row in rows), b"", b"broken")
    assert main(["verify", path, "--json"]) == 1
    *judged, broken = map(json.loads, capsys.readouterr().out.splitlines())
    assert [(row["id"], row["verdict"], row["cause"]) for row in judged] == [
        (1, False, "not equal"),
        (2, True, None),
        (3, False, "not equal"),
    ]
    assert all(row["more"] == {"x": [None, None]} for row in judged)
    assert (broken["line"], broken["verdict"]) == (5, None)


def test_the_summary_counts_verdicts_and_causes_and_shows_what_has_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], patient: None
) -> None:
    pairs = [("2", "2"), ("2", "3"), ("(", "3")]
    lines = [json.dumps({"gold": gold, "answer": answer}).encode() for gold, answer in pairs]
    path = write(tmp_path / "a.jsonl", *lines)
    assert main(["verify", path]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.split() for line in shown[:3]] == [
        ["true", "1", "33.3%"],
        ["false", "1", "33.3%", "not", "equal", "1"],
        ["null", "1", "33.3%", "the", "gold", "answer", "can't", "be", "parsed", "1"],
    ]
    assert shown[3:] == ["line 3: the gold answer can't be parsed"]


def test_a_hang_is_no_verdict_and_the_row_behind_it_is_judged() -> None:
    hasty = MathVerifier(deadline=2.0)
    tower = r"\boxed{\dfrac{5^{(5^{(5^{(5^5)})}-4)}-5}{16}}"
    rows = [{"gold": "3", "answer": tower}, {"gold": "3", "answer": "7"}]
    hang, wrong = verify_lines([json.dumps(row).encode() for row in rows], hasty)
    hasty.close()
    assert (hang.columns["verdict"], hang.columns["cause"]) == (None, "timeout: no result within 2 s")
    assert (wrong.columns["verdict"], wrong.columns["cause"]) == (False, "not equal")


@pytest.mark.parametrize("content", [None, b"", b"\n\n"])
def test_a_file_without_rows_is_an_error_of_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None
) -> None:
    path = tmp_path / "a.jsonl"
    if content is not None:
        path.write_bytes(content)
    assert main(["verify", str(path)]) == 2
    assert "give a JSONL file with gold and answer in each line" in capsys.readouterr().err


def test_verify_loads_no_torch(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", b"broken")
    check = (
        "import sys; from treewise.cli import main; assert main(['verify', sys.argv[1]]) == 1;"
        "assert not {'torch', 'sympy', 'math_verify'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", check, path], check=True, capture_output=True)
