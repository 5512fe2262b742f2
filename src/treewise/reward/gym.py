"""The scorers that come with the tasks of reasoning-gym, in a worker process with a deadline.

    data.source = "reasoning-gym:countdown"    [[reward]] function = "reasoning_gym"

Many tasks have more than one right answer, and some give a part of the reward for a part of the answer; only the task's
own scorer knows. It judges what the reply states (`extract.stated_answer`), or all of it if it states nothing.
"""

from __future__ import annotations

import base64
import importlib.util
import pickle
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from treewise.reward import NoVerdict
from treewise.reward.extract import stated_answer
from treewise.reward.worker import Worker, WorkerError

DEADLINE_SECONDS = 10.0


class ReasoningGym:
    """The reward function, with the worker process that it starts on first use."""

    def __init__(self, *, deadline: float = DEADLINE_SECONDS) -> None:
        if importlib.util.find_spec("reasoning_gym") is None:
            raise ValueError('the reward "reasoning_gym" needs reasoning-gym: pip install "treewise[gym]"')
        self.deadline = deadline
        # The first call imports the package, which takes seconds that no answer should pay for.
        first = {"task": "chain_sum", "entry": _packed({"answer": "1"}), "reply": "1"}
        self._worker = Worker("treewise.reward.gym:judge", warm_up=first)

    def __call__(
        self, *, completion: str, answer: str | None, task: str, question: str, metadata: Mapping[str, Any]
    ) -> float:
        """The task's score of the reply, from 0 to 1. Raises NoVerdict if its scorer fails or takes too long."""
        stated = stated_answer(completion)
        entry = _packed({"question": question, "answer": answer, "metadata": metadata})
        reply = completion.strip() if stated is None else stated
        try:
            return float(self._worker.call(deadline=self.deadline, task=task, entry=entry, reply=reply))
        except (TimeoutError, WorkerError) as error:
            raise NoVerdict(f"the scorer of {task}: {error}") from error


def _packed(entry: Mapping[str, Any]) -> str:
    """Pickled, because scorers may tell a tuple from a list, which JSON doesn't."""
    return base64.b64encode(pickle.dumps(entry)).decode("ascii")


def judge(*, task: str, entry: str, reply: str) -> float:
    """In the worker: what the task's scorer says."""
    return float(_scorer(task)(reply, pickle.loads(base64.b64decode(entry))))


@cache
def _scorer(task: str) -> Callable[[str, Mapping[str, Any]], float]:
    import reasoning_gym

    return reasoning_gym.get_score_answer_fn(task)  # type: ignore[no-any-return]
