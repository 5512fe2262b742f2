"""Rows of named columns from files, hub data sets and generated tasks."""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from treewise.env import textarena, verifiers, verifiers_v0
from treewise.tasks import BY_SIZE, TASKS, generate, reasoning_gym
from treewise.text import inert

Row = tuple[str, dict[str, Any]]  # where it stands, for error messages; its columns
Rows = list[Row]


READERS = (".jsonl", ".parquet", ".csv")
GYM = "reasoning-gym:"
LIBRARIES = {"verifiers:": verifiers, "verifiers_v0:": verifiers_v0, "textarena:": textarena}
Kind = Literal["task", "gym", "library", "file", "hub"]


def _kind(source: str) -> Kind:
    if source in TASKS:
        return "task"
    if source.startswith(GYM):
        return "gym"
    if source.startswith(tuple(LIBRARIES)):
        return "library"
    return "file" if Path(source).suffix in READERS or Path(source).is_file() else "hub"


def has_splits(source: str) -> bool:
    """Whether the source comes with a training and a test split."""
    return _kind(source) in ("task", "hub")


def read_rows(source: str, *, split: str | None, subset: str | None, options: Mapping[str, Any] | None) -> Rows:
    """The rows of a source.

    Raises:
        ValueError: for a source that isn't there, bad rows, or an argument that has no effect on this kind of source.
    """
    kind = _check(source, split=split, subset=subset, options=options)
    match kind:
        case "task":
            rows = generate(source, split=split or "train", options=options or {})
            return [(f"{source}, problem {number}", dict(row)) for number, row in enumerate(rows)]
        case "gym":
            return _read_gym(source, options or {})
        case "library":
            return list(_read_library(source, options or {}, bounded=True))
        case "hub":
            return list(_read_hub(source, split or "train", subset))
    return list(_read_file(source))


class Stream:
    """A source that is read so many rows at a time: a file or hub data set too large for memory, or an endless task.

    A reasoning-gym task makes new problems without end: the rows that one long data set would have.
    """

    def __init__(
        self,
        source: str,
        size: int,
        *,
        split: str | None = None,
        subset: str | None = None,
        options: Mapping[str, Any] | None = None,
        limit: int | None = None,
    ) -> None:
        """
        Args:
            size: rows of a block.
            limit: rows that the source is taken to have.

        Raises ValueError like `read_rows`, and for a built-in task, which is never large.
        """
        self._kind = _check(source, split=split, subset=subset, options=options)
        if self._kind == "task":
            raise ValueError(f"stream = {size} has no effect on the built-in task {source}, which is made as a whole")
        if self._kind == "gym" and source.removeprefix(GYM) in BY_SIZE:
            raise ValueError(f"{source} can't be a stream: its problems depend on how many there are; set options.size")
        if self._kind == "gym" and "size" in (options or {}):
            raise ValueError(f"{source}: options.size has no effect on a stream, which never ends; leave one out")
        self._source, self._size, self._limit = source, size, limit
        self._split, self._subset, self._options = split or "train", subset, dict(options or {})
        self._rows: Iterator[Row] | None = None
        self._next = 0

    def read(self, start: int) -> tuple[Rows, int]:
        """The rows from `start` on, and the number of the row that follows them: 0 behind the last one."""
        size = self._size if self._limit is None else min(self._size, self._limit - start)
        if self._kind == "gym":
            rows = _read_gym(self._source, {**self._options, "size": size}, start=start)
        else:
            if self._rows is None or self._next != start:
                self._rows = itertools.islice(self._open(), start, None)
            rows = list(itertools.islice(self._rows, size))
        self._next = start + len(rows)
        if len(rows) < self._size or self._next == self._limit:
            self._rows, self._next = None, 0
        return rows, self._next

    def _open(self) -> Iterator[Row]:
        match self._kind:
            case "hub":
                return _read_hub(self._source, self._split, self._subset, streaming=True)
            case "library":
                return _read_library(self._source, self._options)
        return _read_file(self._source)


def _check(source: str, *, split: str | None, subset: str | None, options: Mapping[str, Any] | None) -> Kind:
    """What kind of source it is. Raises ValueError for an argument without effect, and for a file that isn't there."""
    kind = _kind(source)
    if options and kind not in ("task", "gym", "library"):
        raise ValueError(f"the options {dict(options)} are only for generated tasks, not for {source!r}")
    if split and not has_splits(source):
        raise ValueError(f"split = {split!r} has no effect on {source!r}, which has no splits")
    if subset and kind != "hub":
        raise ValueError(f"subset = {subset!r} is only for hub data sets, not for {source!r}")
    if kind == "file":
        if Path(source).suffix not in READERS:
            raise ValueError(f"{source}: a data file must end in {', '.join(READERS)}")
        if not Path(source).is_file():
            raise ValueError(f"there is no file {source}")
    return kind


def _read_file(source: str) -> Iterator[Row]:
    readers = dict(zip(READERS, (_read_jsonl, _read_parquet, _read_csv), strict=True))
    return readers[Path(source).suffix](Path(source))


def _read_jsonl(path: Path) -> Iterator[Row]:
    # In bytes, whose lines end at \n only: JSON strings may contain other Unicode line separators.
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
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
            yield where, row


def _is_unicode(row: dict[str, Any]) -> bool:
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _read_csv(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        try:
            for row in reader:
                where = f"{path}:{reader.line_num}"
                if None in row or None in row.values():
                    raise ValueError(f"{where}: not {len(reader.fieldnames or ())} columns: {shorten(row)}")
                yield where, {name: value or None for name, value in row.items()}
        except (csv.Error, UnicodeDecodeError) as error:
            raise ValueError(f"{path}:{reader.line_num + 1}: not CSV in UTF-8 ({error})") from None


def _read_parquet(path: Path) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            rows = (row for batch in file.iter_batches(1024) for row in batch.to_pylist())
            yield from ((f"{path} row {number}", row) for number, row in enumerate(rows))
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise ValueError(f"{path}: not a Parquet file ({error})") from None


def _read_hub(name: str, split: str, subset: str | None, *, streaming: bool = False) -> Iterator[Row]:
    import datasets

    try:
        data = datasets.load_dataset(name, subset, split=split, streaming=streaming)
    except Exception as error:  # the library raises many kinds, for networks, names and formats
        raise ValueError(
            f"can't load {name!r} (split {split!r}, subset {subset!r}), neither a file nor a hub data set:"
            f" {type(error).__name__}: {error}"
        ) from error
    for number, row in enumerate(data):
        yield f"{name} row {number}", dict(row)


def _read_library(source: str, options: Mapping[str, Any], *, bounded: bool = False) -> Iterator[Row]:
    """The tasks that another library has. Raises ValueError for endless ones that must be `bounded`."""
    prefix, name = next((prefix, source.removeprefix(prefix)) for prefix in LIBRARIES if source.startswith(prefix))
    if bounded and LIBRARIES[prefix].endless(name, options):
        raise ValueError(f"{source} has no last task: set options.size, or read it with data.stream")
    for number, row in enumerate(LIBRARIES[prefix].rows(name, options)):
        yield f"{source} task {number}", row


def _read_gym(source: str, options: Mapping[str, Any], *, start: int = 0) -> Rows:
    rows = reasoning_gym(source.removeprefix(GYM), options, start=start)
    return [(f"{source} item {number}", row) for number, row in enumerate(rows, start=start)]


def shorten(value: Any) -> str:
    text = value.decode(errors="backslashreplace") if isinstance(value, bytes) else repr(value)
    return inert(text, limit=200)
