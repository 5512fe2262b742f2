r"""Find the answer in a text. Every scan takes linear time: replies can be long and hostile.

… so 3 boxes. \boxed{\frac{1}{2}}      → \frac{1}{2}     braces are balanced, the last box counts
… \boxed{1} and then \boxed{           → ""              an unfinished last box is no answer
… Answer: 12                           → 12              a line of its own
… <answer>12</answer>   … #### 12      → 12
"""

from __future__ import annotations

import re

_BOX = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])\s{0,5}(\{?)")
_LINE = re.compile(r"^[ \t>*_#-]{0,20}(?:the[ \t]+)?(?:final[ \t]+)?answer[*_ \t]{0,8}[:=](.*)$", re.I | re.M)
_HASHES = re.compile(r"^[ \t]{0,8}####(?!#)(.*)$", re.M)


def last_boxed(text: str) -> str | None:
    r"""The content of the last `\boxed{…}`; "" if that one is empty or unfinished; None if there is none."""
    found = _last_box(text)
    return None if found is None else found[1]


def stated_answer(text: str) -> str | None:
    r"""The answer that `text` states in one of the formats that a prompt can ask for, the last one in it:
    `\boxed{x}`, a line `Answer: x`, `<answer>x</answer>`, a line `#### x` (GSM8K).

    "" if the last statement is empty or unfinished; None if there is none.
    """
    lines = [match for pattern in (_LINE, _HASHES) for match in pattern.finditer(text)]
    found = [(match.start(), match.group(1)) for match in lines]
    opened = text.rfind("<answer>")
    if opened >= 0:
        inside, closed, _ = text[opened + len("<answer>") :].partition("</answer>")
        found.append((opened, inside if closed else ""))
    box = _last_box(text)
    if box is not None:
        found.append(box)
    if not found:
        return None
    _, answer = max(found)  # a box or a tag inside of a line stands later than the line's start, so it wins
    return answer.strip(" \t\r\n*_`")


def gold_answer(answer: str) -> str:
    r"""The final answer in a data set's answer column: what follows the last `####` (GSM8K), else the last
    `\boxed{…}` (solutions of MATH), else all of it."""
    if "####" in answer:
        return answer.rpartition("####")[2].strip()
    return last_boxed(answer) or answer.strip()


def _last_box(text: str) -> tuple[int, str] | None:
    last = max(_BOX.finditer(text), key=lambda match: match.start(), default=None)
    if last is None:
        return None
    if not last.group(1):
        return last.start(), ""
    depth, at = 1, last.end()
    while at < len(text):
        if text[at] == "\\":  # \{ and \} are characters, and \\ is a line break
            at += 1
        elif text[at] == "{":
            depth += 1
        elif text[at] == "}":
            depth -= 1
            if depth == 0:
                return last.start(), text[last.end() : at].strip()
        at += 1
    return last.start(), ""
