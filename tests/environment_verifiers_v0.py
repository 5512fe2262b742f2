"""An environment for the older API of `verifiers`: guess a number, in at most three turns."""

from __future__ import annotations

from typing import Any

import verifiers as vf
from datasets import Dataset


class Guessing(vf.MultiTurnEnv):
    async def env_response(self, messages: vf.Messages, state: vf.State, **_: Any) -> vf.Messages:
        guess = messages[-1]["content"]
        if guess == state["answer"]:
            state["final_env_response"] = [{"role": "user", "content": "right"}]
            return state["final_env_response"]
        return [{"role": "user", "content": "higher" if guess < state["answer"] else "lower"}]


def found(completion: vf.Messages, answer: str, state: vf.State) -> float:
    if answer == "9":
        raise RuntimeError("the grader is broken")
    return float(any(step["completion"][-1]["content"] == answer for step in state["trajectory"]))


async def short(completion: vf.Messages, **_: Any) -> float:
    return float(len(completion) < 3)


def load_environment(count: int = 9) -> vf.Environment:
    rows = [{"prompt": [{"role": "user", "content": "guess my number"}], "answer": str(1 + n)} for n in range(count)]
    return Guessing(
        dataset=Dataset.from_list(rows), max_turns=3, rubric=vf.Rubric(funcs=[found, short], weights=[1.0, 0.5])
    )
