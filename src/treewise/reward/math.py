r"""Mathematical answers, compared by math-verify and rules around it, in a worker process with a deadline.

    reply ──extract.answer_text──▶ \frac{2}{4} ─┐
    gold  ──extract.gold_text────▶ 1/2         ─┴─▶ worker: latex.plain, compare ──▶ True | False | None, cause

The three steps are `extract` (where the answer is), `latex` (its notation) and `compare` (whether it is the gold
answer). "7 or 8" is two answers: right only if both are.
"""

from __future__ import annotations

import importlib.util
from typing import NamedTuple

from treewise.reward import NoVerdict
from treewise.reward.extract import answer_text, gold_text
from treewise.reward.worker import Worker, WorkerError

DEADLINE_SECONDS = 3.0
# The parser learns from what it reads: what is frequent shall not cost the first answers their time.
_WARM_UP = r"\frac{-1}{2} \pi x^{2} \left(\sqrt{3}+\log_{2} y\right) e^{-t}+\sin (2 t)"


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
        self._worker = Worker("treewise.reward.compare:compare", warm_up={"gold": _WARM_UP, "answer": "[0, 1)"})

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
        gold = gold_text(gold)
        if not gold:
            return Comparison(None, "no gold answer")
        found = answer_text(answer)
        if not found:
            return Comparison(False, "no answer found")
        try:
            correct, cause = self._worker.call(deadline=self.deadline, gold=gold, answer=found)
        except TimeoutError as error:
            return Comparison(None, f"timeout: {error}")
        except WorkerError as error:
            return Comparison(None, f"error: {error}")
        return Comparison(correct, cause)

    def close(self) -> None:
        """End the worker process; the next comparison starts a new one."""
        self._worker.close()
