r"""The letter of a multiple-choice answer.

    "so \boxed{B}"   "Answer: B"   "the answer is (B)."   "B) Paris"   "B"      → B
    "Answer: B or C"   "Answer: Banana"   "I take the second one"               → no single letter: wrong

Where the answer stands is what `extract.answer_text` says. With a column `choices` its text does, too: "Answer: Paris".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from treewise.reward import NoVerdict
from treewise.reward.extract import answer_text, gold_answer
from treewise.reward.numeric import plain

_COMMAND = re.compile(r"\\[A-Za-z]+|[{}$\\*_`\"]")  # \text{B}, $B$, **B**
_LONGEST = 1000
# A letter by itself. "A dog" and "I think" begin with words.
_LETTER = re.compile(r"(?<![\w'’-])([A-Z])(?![\w'’-])(?!(?<=[AI])\s+(?!and\b|or\b|nor\b)[a-z])")
_DENIED = re.compile(r"\b(?:not|neither|never|except)\b|n['’]t\b", re.I)
_OPTION = re.compile(r"\b(?:option|choice)(?=\s+is\b)", re.I)  # "the correct option is (B)"
_ALONE = re.compile(r"\W*([A-Za-z])\W*")
_LABEL = re.compile(r"\W*([A-Za-z])(?:\s*[).:,\]]+\s*|\s+)")


def choice(*, completion: str, answer: str | None, choices: Sequence[Any] | Mapping[str, Any] | None = None) -> float:
    """1.0 if the reply names the right choice and no other, by its letter or, where `choices` are known, its text.

    Args:
        answer: the letter, the index from 0, or the text of the right choice.
        choices: the texts in the order of their letters, or {"text": […], "label": […]}, where `answer` is a label.

    Raises NoVerdict if `answer` is none of that, or could mean two of the choices.
    """
    texts, labels = _columns(choices)
    gold = _gold(answer, texts, labels)
    return float(_named(_stated(completion), texts) == gold)


def _stated(completion: str) -> str:
    last = completion.rstrip().rpartition("\n")[2]
    if _ALONE.fullmatch(last) and len(last) < _LONGEST:
        return last
    return answer_text(_OPTION.sub("answer", completion))


def _columns(choices: Sequence[Any] | Mapping[str, Any] | None) -> tuple[list[str], list[str]]:
    if choices is None:
        return [], []
    labels = choices.get("label") or () if isinstance(choices, Mapping) else ()
    texts = choices.get("text") if isinstance(choices, Mapping) else choices
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        raise NoVerdict(f"choices is {choices!r:.60}, not a list of texts")
    return [plain(str(text)) for text in texts], [str(label) for label in labels]


def _gold(answer: str | None, texts: Sequence[str], labels: Sequence[str]) -> str:
    """The right letter."""
    if answer is None or not answer.strip():
        raise NoVerdict("the problem has no answer")
    gold = gold_answer(answer)
    places = {place for place, label in enumerate(labels) if label == gold}
    if not places:
        places = {place for place, text in enumerate(texts) if text == plain(gold)}
        if gold.isdecimal():
            places.add(int(gold))
        elif alone := _ALONE.fullmatch(gold):
            places.add(_place(alone[1]))
    places = {place for place in places if place < (len(texts) or 26)}
    if len(places) != 1:
        several = f"could be each of {', '.join(_letter(place) for place in sorted(places))}"
        raise NoVerdict(f"the gold answer {gold[:60]!r} {several if places else 'is none of the choices'}")
    return _letter(places.pop())


def _named(stated: str, texts: Sequence[str]) -> str | None:
    """The letter that a statement names; `None` if it is none, or several."""
    stated = _COMMAND.sub(" ", stated[:_LONGEST])
    alone = _ALONE.fullmatch(stated)
    if alone and _place(alone[1]) < (len(texts) or 26):
        return alone[1].upper()
    whole = plain(stated)
    if texts.count(whole) == 1:
        return _letter(texts.index(whole))
    label = _LABEL.match(stated)
    if label and plain(stated[label.end() :]) in texts[_place(label[1]) : _place(label[1]) + 1]:
        return label[1].upper()
    letters = {match[1]: match.start() for match in _LETTER.finditer(stated)}
    if len(letters) != 1:
        return None
    ((letter, at),) = letters.items()
    return None if _DENIED.search(stated, 0, at) else letter


def _place(letter: str) -> int:
    return ord(letter.upper()) - ord("A")


def _letter(place: int) -> str:
    return chr(ord("A") + place)
