"""Whether a reply keeps to a layout of tags. Each tag must stand exactly once, so repetition earns nothing, a thought
must hold a letter or a digit, and an answer something that can be seen.

    think_format          <think>…</think> text
    think_answer_format   <think>…</think> <answer>…</answer>      and nothing after it

What the prompt has already opened ("<think>" at its end) counts as part of the reply, and so does a thought that the
chat template has closed: in a mode without thinking, where that is empty, no reply keeps to the layout.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from treewise.types import Message

_THINK = re.compile(r"\s*<think>(.*)</think>(.*)", re.S)
_THINK_ANSWER = re.compile(r"\s*<think>(.*)</think>\s*<answer>(.*)</answer>\s*", re.S)


def think_format(*, completion: str, prompt: str | Sequence[Message] = "", prefill: str = "") -> float:
    """1.0 for one thinking block that isn't empty, followed by text, else 0.0."""
    return _matches(_THINK, ("<think>", "</think>"), _opened(prompt, prefill) + completion)


def think_answer_format(*, completion: str, prompt: str | Sequence[Message] = "", prefill: str = "") -> float:
    """1.0 for one thinking block and one answer block, neither empty and nothing around them, else 0.0."""
    tags = ("<think>", "</think>", "<answer>", "</answer>")
    return _matches(_THINK_ANSWER, tags, _opened(prompt, prefill) + completion)


def _matches(layout: re.Pattern[str], tags: Sequence[str], text: str) -> float:
    if any(text.count(tag) != 1 for tag in tags):
        return 0.0
    match = layout.fullmatch(text)
    if match is None:
        return 0.0
    thought, *rest = match.groups()
    return float(any(map(str.isalnum, thought)) and all(any(map(_visible, part)) for part in rest))


def _visible(character: str) -> bool:
    return character.isprintable() and not character.isspace()


def _opened(prompt: str | Sequence[Message], prefill: str) -> str:
    """What of the reply stands in the prompt: an opened "<think>", or the whole prefill if it closes a thought."""
    if isinstance(prompt, str) and prompt:
        return "<think>" if prompt.rstrip().endswith("<think>") else ""
    if "</think>" in prefill:
        return prefill
    return "<think>" if prefill.rstrip().endswith("<think>") else ""
