"""Text that other people or models wrote, made safe to show."""

from __future__ import annotations


def inert(text: str, *, limit: int = 300) -> str:
    """One line that cannot steer a terminal: what isn't printable is escaped, the middle of long text left out."""
    half = limit // 2
    shown = text if len(text) <= limit else f"{text[:half]} … {text[-half:]}"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in shown)


def cut(text: str, limit: int) -> str:
    """At most about `limit` characters: the middle of long text is left out, and how much that is."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[len(text) - half :]}"
