"""Rows of named columns from files, hub data sets and generated tasks."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from treewise.tasks import TASKS, generate
from treewise.text import inert

Rows = list[tuple[str, dict[str, Any]]]  # (where the row stands, for error messages; its columns)


READERS = (".jsonl", ".parquet", ".csv")


def _kind(source: str) -> Literal["task", "gym", "file", "hub"]:
    if source in TASKS:
        return "task"
    if source.startswith("reasoning-gym:"):
        return "gym"
    return "file" if Path(source).suffix in READERS or Path(source).is_file() else "hub"


def has_splits(source: str) -> bool:
    """Whether the source comes with a training and a test split."""
    return _kind(source) in ("task", "hub")


def read_rows(source: str, *, split: str | None, subset: str | None, options: Mapping[str, Any] | None) -> Rows:
    """The rows of a source.

    Raises:
        ValueError: for a source that isn't there, bad rows, or an argument that has no effect on this kind of source.
    """
    kind = _kind(source)
    if options and kind not in ("task", "gym"):
        raise ValueError(f"the options {dict(options)} are only for generated tasks, not for {source!r}")
    if split and not has_splits(source):
        raise ValueError(f"split = {split!r} has no effect on {source!r}, which has no splits")
    if subset and kind != "hub":
        raise ValueError(f"subset = {subset!r} is only for hub data sets, not for {source!r}")
    match kind:
        case "task":
            rows = generate(source, split=split or "train", options=options or {})
            return [(f"{source}, problem {number}", dict(row)) for number, row in enumerate(rows)]
        case "gym":
            return _read_reasoning_gym(source.removeprefix("reasoning-gym:"), options or {})
        case "hub":
            return _read_hub(source, split or "train", subset)
    path = Path(source)
    readers = dict(zip(READERS, (_read_jsonl, _read_parquet, _read_csv), strict=True))
    if path.suffix not in readers:
        raise ValueError(f"{source}: a data file must end in {', '.join(readers)}")
    if not path.is_file():
        raise ValueError(f"there is no file {source}")
    return readers[path.suffix](path)


def _read_jsonl(path: Path) -> Rows:
    rows: Rows = []
    # Split at \n only: JSON strings may contain other Unicode line separators.
    for number, raw in enumerate(path.read_bytes().split(b"\n"), start=1):
        where = f"{path}:{number}"
        if not raw.strip():
            continue
        try:
            row = json.loads(raw)
        except (ValueError, RecursionError) as error:  # broken JSON, broken UTF-8, absurd nesting
            raise ValueError(f"{where}: not a JSON object ({error}): {shorten(raw)}") from None
        if not isinstance(row, dict):
            raise ValueError(f"{where}: not a JSON object: {shorten(raw)}")
        if b"\\ud" in raw.lower() and not _is_unicode(row):
            raise ValueError(f"{where}: half of a surrogate pair, which is no text: {shorten(raw)}")
        rows.append((where, row))
    return rows


def _is_unicode(row: dict[str, Any]) -> bool:
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _read_csv(path: Path) -> Rows:
    rows: Rows = []
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        try:
            for row in reader:
                where = f"{path}:{reader.line_num}"
                if None in row or None in row.values():
                    raise ValueError(f"{where}: not {len(reader.fieldnames or ())} columns: {shorten(row)}")
                rows.append((where, {name: value or None for name, value in row.items()}))
        except (csv.Error, UnicodeDecodeError) as error:
            raise ValueError(f"{path}:{reader.line_num + 1}: not CSV in UTF-8 ({error})") from None
    return rows


def _read_parquet(path: Path) -> Rows:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path)
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise ValueError(f"{path}: not a Parquet file ({error})") from None
    return [(f"{path} row {number}", row) for number, row in enumerate(table.to_pylist())]


def _read_hub(name: str, split: str, subset: str | None) -> Rows:
    import datasets

    try:
        data = datasets.load_dataset(name, subset, split=split)
    except Exception as error:  # the library raises many kinds, for networks, names and formats
        raise ValueError(
            f"can't load {name!r} (split {split!r}, subset {subset!r}), neither a file nor a hub data set:"
            f" {type(error).__name__}: {error}"
        ) from error
    return [(f"{name} row {number}", dict(row)) for number, row in enumerate(data)]


def _read_reasoning_gym(task: str, options: Mapping[str, Any]) -> Rows:
    import reasoning_gym
    from reasoning_gym.factory import DATASETS

    if task not in DATASETS:
        raise ValueError(f"reasoning-gym has no task {task!r}: it has {', '.join(sorted(DATASETS))}")
    try:
        data = reasoning_gym.create_dataset(task, **{"seed": 0, "size": 500, **options})
    except (TypeError, AssertionError) as error:  # an unknown option; a value out of range
        raise ValueError(f"reasoning-gym:{task} refuses the options {dict(options)}: {error}") from None
    return [(f"reasoning-gym:{task} item {number}", {**data[number], "task": task}) for number in range(len(data))]


def shorten(value: Any) -> str:
    text = value.decode(errors="backslashreplace") if isinstance(value, bytes) else repr(value)
    return inert(text, limit=200)
