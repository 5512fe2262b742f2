"""A taskset of `verifiers` 0.4 with an environment of its own: guess a number, in at most three turns."""

from __future__ import annotations

from collections.abc import Iterator

import verifiers.v1 as vf

__all__ = ["Guessing", "GuessingGame"]


class Secret(vf.TaskData):
    answer: str


class Guess(vf.Task[Secret, vf.State, vf.TaskConfig]):
    @vf.stop
    async def swore(self, trace: vf.Trace) -> bool:
        return "damn" in trace.last_reply


class GuessingConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class GuessingGame(vf.Env[GuessingConfig]):
    async def run(self, task: Guess, agents: vf.Agents) -> None:
        found, left = 0.0, 3
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
            while not segment.terminated:
                left -= 1
                found = float(segment.last_reply == task.data.answer)
                if found or not left:
                    break
                segment = await interaction.turn("higher" if segment.last_reply < task.data.answer else "lower")
        interaction.trace.record_reward("found", found, 1.0)
        interaction.trace.record_metric("left", left)


class Guessing(vf.Taskset[Guess, vf.TasksetConfig]):
    INFINITE = True

    def load(self) -> Iterator[Guess]:
        n = 0
        while True:
            yield Guess(Secret(name=f"secret {n}", prompt="guess my number, 1 to 9", answer=str(1 + n % 9)))
            n += 1
