"""Score recorded answers without a model: rows in, the same rows in the same order with their verdicts out.

    {"gold": "1/2", "answer": "so \\\\boxed{0.5}", "id": 7}
        ──▶ {"gold": "1/2", "answer": "so \\\\boxed{0.5}", "id": 7, "verdict": true, "cause": null}

`answer` is the whole reply. Verdicts are those of the reward `math`: true, false, or null where there is none, and
`cause` says why it is not true. A row that can't be judged (no JSON, no gold answer, another type) has the verdict
null as well; what could not be read as an object at all comes out as {"line": its number, "verdict": null, "cause": …}.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

from treewise.reward.math import MathVerifier
from treewise.text import inert

_PROGRESS_SECONDS = 10.0


class Row(NamedTuple):
    """One line of a file with its verdict. `readable` says whether it had a gold answer and a reply to compare."""

    line: int
    columns: dict[str, Any]
    readable: bool


def verify_lines(lines: Iterable[bytes], verifier: MathVerifier) -> Iterator[Row]:
    """Judge the rows of a JSONL file one by one; empty lines are left out."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            columns = json.loads(line)
            _plain(columns)  # what is nested too deeply can't be written again
        except (ValueError, RecursionError) as error:
            reason = "not UTF-8" if isinstance(error, UnicodeDecodeError) else f"not JSON ({error})"
            yield _unreadable(number, {"line": number}, f"the line is {reason}")
            continue
        if not isinstance(columns, dict):
            yield _unreadable(number, {"line": number}, f"the line is a {_kind(columns)}, not an object")
            continue
        try:
            gold, answer = (_text(columns, name) for name in ("gold", "answer"))
        except ValueError as error:
            yield _unreadable(number, columns, str(error))
            continue
        correct, cause = verifier.verify(gold=gold, answer=answer)
        yield Row(number, {**columns, "verdict": correct, "cause": cause and inert(cause)}, True)


def verify_command(path: str | Path, *, as_json: bool) -> int:
    """`treewise verify`: print rows as JSON lines, or a summary. Returns 0, or 1 if a row could not be read.

    Raises:
        ValueError: if the file can't be read or is empty, or math-verify is not installed.
    """
    verifier = MathVerifier()
    rows: list[Row] = []
    try:
        with Path(path).open("rb") as file:
            size = Path(path).stat().st_size
            said = time.monotonic()
            for row in verify_lines(file, verifier):
                rows.append(row._replace(columns={name: row.columns[name] for name in ("verdict", "cause")}))
                if as_json:
                    print(json.dumps(_plain(row.columns)), flush=True)
                if time.monotonic() - said > _PROGRESS_SECONDS:
                    said = time.monotonic()
                    print(f"{len(rows)} rows, {_share(file.tell(), size)} of the file", file=sys.stderr)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}; give a JSONL file with gold and answer in each line") from error
    finally:  # also what was judged before Ctrl-C
        verifier.close()
        if rows and not as_json:
            print(summary(rows))
    if not rows:
        raise ValueError(f"{path}: no rows; give a JSONL file with gold and answer in each line")
    return 0 if all(row.readable for row in rows) else 1


def summary(rows: Iterable[Row]) -> str:
    """How many rows have which verdict and why, and each row that has none."""
    rows = list(rows)
    causes = Counter((row.columns["verdict"], _short(row.columns["cause"])) for row in rows)
    lines = []
    for verdict in (True, False, None):
        number = sum(row.columns["verdict"] is verdict for row in rows)
        why = [f"{name} {count}" for (kind, name), count in causes.most_common() if kind is verdict and name]
        lines.append(f"{json.dumps(verdict):5}  {number:6}  {_share(number, len(rows)):>6}  {', '.join(why)}".rstrip())
    missing = [row for row in rows if row.columns["verdict"] is None]
    lines += [f"line {row.line}: {row.columns['cause']}" for row in missing]
    return "\n".join(lines)


def _unreadable(number: int, columns: dict[str, Any], cause: str) -> Row:
    return Row(number, {**columns, "verdict": None, "cause": inert(cause)}, False)


def _text(columns: dict[str, Any], name: str) -> str:
    """A column as text. A number is what is written for it in decimals: 42, 0.1, 0.00001 for 1e-5."""
    if columns.get(name) is None:
        raise ValueError(f"the row has no {name}")
    value = columns[name]
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} is a {_kind(value)}, not a text or a number")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name} is {value}")
    return format(Decimal(repr(value)), "f").removesuffix(".0")


def _kind(value: Any) -> str:
    names = {dict: "object", list: "list", bool: "boolean", str: "text", type(None): "null"}
    return names.get(type(value), "number")


def _plain(value: Any) -> Any:
    """JSON has no nan and no infinity, which Python reads and writes: they become null."""
    if isinstance(value, dict):
        return {name: _plain(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _short(cause: str | None) -> str:
    return (cause or "").partition(":")[0].partition(" (")[0]


def _share(part: int, whole: int) -> str:
    return f"{part / max(1, whole):.1%}"
