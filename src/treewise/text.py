"""Text that other people or models wrote, made safe to show."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any, TextIO


def inert(text: str, *, limit: int = 300) -> str:
    """One line that cannot steer a terminal: what isn't printable is escaped, the middle of long text left out."""
    half = limit // 2
    shown = text if len(text) <= limit else f"{text[:half]} … {text[-half:]}"
    return _escaped(shown)


@contextlib.contextmanager
def inert_output() -> Iterator[None]:
    """What is printed inside can't steer a terminal: all but line breaks and tabs is escaped like in `inert`.

    For code that may print what a model wrote. What goes around `sys.stdout` and `sys.stderr` is not seen here.
    """
    with (
        contextlib.redirect_stdout(_Inert(sys.stdout)),  # type: ignore[type-var]
        contextlib.redirect_stderr(_Inert(sys.stderr)),  # type: ignore[type-var]
    ):
        yield


class _Inert:
    """A text stream that escapes what is written to it."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream  # None in a process without a terminal

    def write(self, text: str) -> int:
        if self._stream is not None:
            self._stream.write(_escaped(text, keep="\n\t"))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _escaped(text: str, *, keep: str = "") -> str:
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode("ascii") for c in text)


def encodable(text: str) -> str:
    """The text with `?` for every half of a surrogate pair, which no tokenizer takes.

    Models write them: as an escape in the JSON of a tool call, or in a program.
    """
    return text.encode(errors="replace").decode()


def cut(text: str, limit: int) -> str:
    """At most about `limit` characters: the middle of long text is left out, and how much that is."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[len(text) - half :]}"
