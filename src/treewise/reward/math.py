r"""Mathematical answers, compared by math-verify in a worker process with a deadline.

    reply ──extract──▶ \boxed{\frac{2}{4}} ─┐
    gold  ──extract──▶ \boxed{1/2}         ─┴─▶ worker: parse, verify ──▶ True | False | None, cause

The reply's answer is what it states (`extract.stated_answer`); a reply that states nothing is read by
math-verify's own rules. Of several boxes the last one counts. "7 or 8" is right only if both are.
"""

from __future__ import annotations

import importlib.util
import re
from typing import NamedTuple

from treewise.reward import NoVerdict
from treewise.reward.extract import gold_answer, stated_answer
from treewise.reward.worker import Worker, WorkerError

DEADLINE_SECONDS = 3.0
_SENTENCE = re.compile(r"\banswer\s{1,5}(?:is|equals|=)[ \t:]{0,5}(.*)$", re.I | re.M)
_ASIDE = re.compile(r"[.,;:]\s+(?=[A-Za-z]{2})")  # ", so …" after an answer
_OR = re.compile(r"\s+or\s+|\\text\s?\{\s*or\s*\}|\\(?:lor|vee)(?![a-zA-Z])")


class Comparison(NamedTuple):
    """Whether an answer is right; None if there is no verdict. `cause` says why it is not True."""

    correct: bool | None
    cause: str | None = None


class MathVerifier:
    """Compares replies with gold answers, in one worker process that starts on first use."""

    def __init__(self, *, deadline: float = DEADLINE_SECONDS) -> None:
        if importlib.util.find_spec("math_verify") is None:
            raise ValueError('the reward "math" needs math-verify: pip install "treewise[math]"')
        self.deadline = deadline
        # The first comparison builds parsers, which takes a second that no answer should pay for.
        self._worker = Worker("treewise.reward.compare:compare", warm_up={"gold": "1", "answers": ["1"]})

    def __call__(self, *, completion: str, answer: str | None) -> float:
        """The reward function: 1.0 for right, 0.0 for wrong. Raises NoVerdict if that can't be told."""
        compared = self.verify(gold=answer or "", answer=completion)
        if compared.correct is None:
            raise NoVerdict(compared.cause)
        return float(compared.correct)

    def verify(self, *, gold: str, answer: str) -> Comparison:
        """Whether the reply `answer` gives the answer `gold`.

        The order matters, hence the names: an interval in the reply is right for an inequality as the gold
        answer ([-2,7] for -2 ≤ x ≤ 7), but not the other way round, which only repeats a condition.
        """
        gold = gold_answer(gold)
        if not gold:
            return Comparison(None, "no gold answer")
        stated = stated_answer(answer)
        if stated is None:
            sentences = _SENTENCE.findall(answer)
            stated = _ASIDE.split(sentences[-1])[0].strip().removesuffix(".") if sentences else None
        if not (answer.strip() if stated is None else stated):
            return Comparison(False, "no answer found")
        parts = [answer] if stated is None else [_box(part) for part in _alternatives(stated, gold)]
        try:
            correct, cause = self._worker.call(deadline=self.deadline, gold=_box(gold), answers=parts)
        except TimeoutError as error:
            return Comparison(None, f"timeout: {error}")
        except WorkerError as error:
            return Comparison(None, f"error: {error}")
        return Comparison(correct, cause)

    def close(self) -> None:
        """End the worker process; the next comparison starts a new one."""
        self._worker.close()


def _alternatives(stated: str, gold: str) -> list[str]:
    """ "7 or 8" as ["7", "8"], unless the gold answer has alternatives itself."""
    return [stated] if _OR.search(gold) else _OR.split(stated)


def _box(expression: str) -> str:
    """The expression, or what it has between dollars, as the only thing that a parser can find."""
    delimited = re.search(r"\$\$?([^$]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", expression)
    inside = next(filter(None, delimited.groups())) if delimited else expression
    return f"\\boxed{{{inside.strip()}}}"
