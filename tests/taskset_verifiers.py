"""A taskset for `verifiers` 0.4, as its documentation has them: sums to answer in one reply."""

from __future__ import annotations

from collections.abc import Iterable

import verifiers.v1 as vf

__all__ = ["Numbers"]


class NumberData(vf.TaskData):
    answer: str


class NumberConfig(vf.TasksetConfig):
    count: int = 4
    fault: str = ""


class Number(vf.Task[NumberData, vf.State, vf.TaskConfig]):
    @vf.reward(weight=2.0)
    async def right(self, trace: vf.Trace) -> float:
        if self.data.name == "raises":
            raise RuntimeError("the grader is broken")
        return float(trace.last_reply == self.data.answer)

    @vf.reward(weight=0.5)
    async def short(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply) < 5)

    @vf.metric
    async def turns(self, trace: vf.Trace) -> float:
        return trace.num_turns

    async def setup(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        result = await runtime.run(["sh", "-c", "echo from the runtime"], {})
        trace.info["said"] = result.stdout.strip()

    async def finalize(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        assert trace.info["said"] == "from the runtime"


class Numbers(vf.Taskset[Number, NumberConfig]):
    def load(self) -> Iterable[Number]:
        for n in range(self.config.count):
            data = NumberData(
                name=self.config.fault or f"number {n}",
                prompt=f"{n}+{n}=?",
                system_prompt="Be brief.",
                answer=str(2 * n),
            )
            yield Number(data, self.config.task)
