r"""Find the answer in a text. Every scan takes linear time: replies can be long and hostile.

… so 3 boxes. \boxed{\frac{1}{2}}      → \frac{1}{2}     braces are balanced, the last box counts
… \boxed{1} or \boxed{2}               → 1, 2            joined boxes are one answer
… \boxed{1} and then \boxed{           → ""              an unfinished last box is no answer
… Answer: 12                           → 12              a line of its own
… <answer>12</answer>   … #### 12      → 12
where a reply may state its answer in its own way (`answer_text`), also
… so the answer is $x = 12$, as 3 · 4  → $x = 12$        the sentence with the word "answer"
3/4                                    → 3/4             the whole reply, if it isn't prose
… thus $x = 12$ apples.                → $x = 12$        the only formula, or the only number
… so $x = 12$, or maybe $x = 13$.      → ""              of several candidates none is stated
"""

from __future__ import annotations

import re

_BOX = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])\s{0,5}(\{?)")
_BETWEEN_BOXES = re.compile(r"[\s$]{0,5}(?:[,;]|[,;]?\s{0,3}(?:and|or))[\s$]{0,5}")
_LINE = re.compile(r"^[ \t>*_#-]{0,20}(?:the[ \t]+)?(?:final[ \t]+)?answer[*_ \t]{0,8}[:=](.*)$", re.I | re.M)
_HASHES = re.compile(r"^[ \t]{0,8}####(?!#)(.*)$", re.M)
_SENTENCE = re.compile(r"\banswers?\b(?:[^.\n$\\:=]{0,60}?\b(?:is|are|equals?|be)\b|[ \t*]{0,5}[:=])[\s:*=]{0,8}", re.I)
# What follows an answer in its sentence: ", so …", " because …", ". I hope …". A list goes on: ", and 5".
_ASIDE = re.compile(
    r"[,;]?\s\(?(?:so|since|because|which|where|as|but|for|that|if|when|thus)\b|[.!]\**\s+(?=I\b|[A-Za-z]{2})"
    r"|,\s+(?!and\b|or\b)(?=[a-z]{3,} )|\n\s*\n"
)
_FORMULA = (
    r"(?:(?<![\\\d])\$\$?(?:\\.|[^$\\]){1,2000}\$\$?|\\\((?:[^\\]|\\(?!\))){1,2000}\\\)"
    r"|\\\[(?:[^\\]|\\(?!\])){1,2000}\\\])"
)
_FORMULAS = re.compile(rf"{_FORMULA}(?:\s?[,;]?\s?(?:and\b|or\b)?\s?{_FORMULA}){{0,30}}(?:\s?\\?%)?", re.S)
_NUMBER = re.compile(
    r"-?\\[dt]?frac\{-?\d{1,50}\}\{-?\d{1,50}\}"
    r"|(?<![\w.])(?<!\)[-+])[-+]?[$€£]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)?(?:\.\d+|(?<=\d))(?:[eE][-+]?\d{1,4})?"
    r"(?:\s?[-+*/^]\s?\d+(?:\.\d+)?){0,30}(?:\s?\\?%)?"
)
# Marks of direction, joiners, soft hyphens, byte order marks: nobody sees them, and they are no part of an answer.
_INVISIBLE = re.compile("[\u00ad\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff]")
_AROUND = " \t\r\n\u00a0\u202f\u3000*_`"
# Behind a formula: the list goes on with another value.
_MORE = re.compile(r"\s*(?:[,;]?\s*(?:and|or)\b[a-z ]{0,20}|[,;])\s*[-+]?\$?[\d.\\]", re.I)
# At the end, behind an aside: another value.
_ANOTHER = re.compile(r"(?:[,;]|\bor\b[a-z }]{0,20})\s*\$?[-+]?[\d.]{1,50}\$?$", re.I)
# Who asks doesn't answer.
_ASKS = re.compile(
    r"\?|(?:^|[.!:,]\s|\n)\s*(?:please |and )?(?:find|compute|calculate|evaluate|simplify|solve|factor"
    r"|determine|express|write|convert|what|how|which|give|state)\b",
    re.I,
)
# Words that only prose has.
_PROSE = re.compile(
    r"(?<!\\)\b(?:the|is|are|was|so|we|it|this|there|has|have|gets?|gives?|thus|hence|therefore|can't|i'm|case)\b", re.I
)
_TEXT = re.compile(r"\\(?:text|mbox|mathrm)\s?\{[^{}]{0,200}\}")
_END = 20_000  # characters at the end of a reply in which an answer without a format is looked for
_LONGEST_WHOLE = 1000


def last_boxed(text: str) -> str | None:
    r"""The content of the last `\boxed{…}`, and of those that "and", "or" or a comma join to it, with commas between.

    "" if the last one is empty or unfinished; None if there is none.
    """
    found = _last_box(text)
    return None if found is None else found[1]


def stated_answer(text: str) -> str | None:
    r"""The answer that `text` states in one of the formats that a prompt can ask for, the last one in it:
    `\boxed{x}`, a line `Answer: x`, `<answer>x</answer>`, a line `#### x` (GSM8K).

    "" if the last statement is empty or unfinished; None if there is none.
    """
    text = visible(text)
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
    return answer.strip(_AROUND)


def answer_text(reply: str) -> str:
    """The answer of a reply: what it states in a format, else the sentence with "answer", else the whole reply if it
    isn't prose, else its only formula, else its only number. "" if there is nothing of all that: a reply that has
    several candidates, or repeats the question, states none."""
    reply = visible(reply)
    stated = stated_answer(reply)
    if stated is not None:
        return _in_sentence(stated) or _first(stated) or stated
    end = reply[-_END:].strip()
    sentence = _in_sentence(end)
    if sentence is not None:
        return sentence
    if _is_whole(end):
        return end
    if _ASKS.search(end):
        return ""
    found = [match.group() for match in _FORMULAS.finditer(end)] or [m.group() for m in _NUMBER.finditer(end)]
    return found[-1] if len({"".join(one.split()) for one in found}) == 1 else ""


def gold_answer(answer: str) -> str:
    """The final answer in a data set's answer column: what follows the last `####` (GSM8K), else the last
    `\\boxed{…}` (solutions of MATH), else all of it."""
    answer = visible(answer)
    if "####" in answer:
        return answer.rpartition("####")[2].strip()
    return last_boxed(answer) or answer.strip()


def visible(text: str) -> str:
    """The text without characters that show nothing."""
    return _INVISIBLE.sub("", text)


def gold_text(answer: str) -> str:
    """The gold answer without the words around it: "$f(x)=ax+b$, where …" is "$f(x)=ax+b$"."""
    gold = gold_answer(answer)
    return _first(gold) if gold.count("$") % 2 == 0 and _FORMULAS.match(gold) else gold


def _in_sentence(text: str) -> str | None:
    last = max(_SENTENCE.finditer(text), key=lambda match: match.start(), default=None)
    return (_first(text[last.end() :]) or None) if last else None


def _first(text: str) -> str:
    """The answer that a text begins with: a formula, if there is nothing but words before it; else what stands before
    the first aside."""
    formula = _FORMULAS.search(text)
    if _ANOTHER.search(text) or (formula and _MORE.match(text, formula.end())):
        return text
    before = text[: formula.start()] if formula else text
    asides = [match.start() for match in _ASIDE.finditer(before)]
    end = next((at for at in asides if before.count("{", 0, at) == before.count("}", 0, at)), None)
    if formula and end is None and not re.search(r"[\d\\]", before):
        sign = "-" if before.rstrip().endswith("-") else ""
        return sign + formula.group()
    return before[:end].strip(" \t\r\n*_`")


def _is_whole(text: str) -> bool:
    outside = _TEXT.sub(" ", text)
    if len(text) > _LONGEST_WHOLE or _PROSE.search(outside) or (r"\begin" not in text and "\n" in text):
        return False
    return not (_FORMULAS.search(text) and re.search(r"[A-Za-z]{3}", _FORMULAS.sub("", outside)))


def _last_box(text: str) -> tuple[int, str] | None:
    """Where the last box starts, and its content; with the boxes that are joined to it."""
    found: list[str] = []
    start = len(text)
    for match in reversed(list(_BOX.finditer(text))):
        end = _closing(text, match.end(), start) if match.group(1) else None
        if not found:
            found.append("" if end is None else text[match.end() : end].strip())
        elif end is not None and found[0] and _BETWEEN_BOXES.fullmatch(text[end + 1 : start]):
            found.insert(0, text[match.end() : end].strip())
        else:
            break
        start = match.start()
    return (start, ", ".join(found)) if found else None


def _closing(text: str, at: int, limit: int) -> int | None:
    """Where the brace closes that opens before `at`; None if it doesn't before `limit`."""
    depth = 1
    while at < limit:
        if text[at] == "\\":  # \{ and \} are characters, and \\ is a line break
            at += 1
        elif text[at] == "{":
            depth += 1
        elif text[at] == "}":
            depth -= 1
            if depth == 0:
                return at
        at += 1
    return None
