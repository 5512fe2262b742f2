"""Rewards: plain functions that judge replies, and how several of them make one number.

    replies ──▶ function 1 ──▶ scores ─┐
            └─▶ function 2 ──▶ scores ─┴─ Σ weight × score, gates ──▶ reward, or None with its cause

A function takes one reply, the steps of one, or a batch in the way of TRL; its parameters' names decide which:

    def reward(completion, answer, **columns) -> float | None
    def reward(steps, answer, **columns) -> list[float | None]                    one number per step
    def reward(completions, prompts, answer, **columns) -> list[float | None]     one per reply
    def reward(data_source, solution_str, ground_truth, extra_info) -> float      verl's way

`answer`, `prompt`, `prefill`, `turns` (the messages behind the prompt) and the columns of the data are passed by
name, as far as the function takes them; all kinds may be async. No verdict is `None`, never 0: a function returns
`None`, for a reply or for one of its steps, or raises, and then the reply has no reward at all. The score of a function
of steps is their sum; a reply without any step is not shown to it and scores 0.

Functions that aren't async are called one after the other in the thread that asked, so they may use signals,
connections and random numbers of their own; nothing limits their time unless they run in a process (`isolated`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from treewise.credit import LARGEST_REWARD
from treewise.reward.call import Judged, NoVerdict, Reply, Reward, call, given
from treewise.text import inert_output

__all__ = ["Judged", "NoVerdict", "Reply", "Reward", "Verdict", "compose", "score"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The reward (None with its cause where there is no verdict) and the score of each function by name.

    `steps`: what of the reward came with each step of the reply, if a function judged those.
    """

    reward: float | None
    scores: Mapping[str, float | None] = field(default_factory=dict)
    cause: str | None = None
    steps: tuple[float, ...] = ()


async def score(rewards: Sequence[Reward], replies: Sequence[Reply]) -> list[Verdict]:
    """Judge `replies`, in their order.

    An exception, `None`, a value that is no finite number: the score is None, and so is the reward if the function
    has a weight or a gate. What functions print can't steer a terminal. Raises ValueError for mistakes that concern
    every reply: a function that doesn't return one value per reply or per step, a parameter that no column fills,
    names that repeat, no weight at all.
    """
    names = [reward.name for reward in rewards]
    if len(set(names)) < len(names):
        raise ValueError(f"several rewards have the same name: {', '.join(names)}")
    if not any(reward.weight for reward in rewards):
        raise ValueError(f"no reward has a weight, so there is nothing to learn: {', '.join(names) or 'none'}")
    if not replies:
        return []
    judged: list[dict[str, Judged]] = [{} for _ in replies]
    with inert_output():
        for reward in rewards:
            own = [n for n, r in enumerate(replies) if r.failure is None and reward.concerns(r.problem)]
            if own:
                for number, one in zip(own, await call(reward, [replies[n] for n in own]), strict=True):
                    judged[number][reward.name] = one
    return [_verdict(reply, rewards, found) for reply, found in zip(replies, judged, strict=True)]


def _verdict(reply: Reply, rewards: Sequence[Reward], judged: Mapping[str, Judged]) -> Verdict:
    """What the rewards that concern a reply make of it."""
    own = [reward for reward in rewards if reward.concerns(reply.problem)]
    if reply.failure is not None:
        return Verdict(None, {reward.name: None for reward in own}, reply.failure)
    weights = {reward.name: reward.weight for reward in own}
    if not any(weights.values()):
        return Verdict(None, {name: one.score for name, one in judged.items()}, "no reward with a weight judges it")
    gates = {reward.name: reward.gate for reward in own if reward.gate is not None}
    causes = {name: one.cause for name, one in judged.items() if one.cause}
    scores = {reward.name: judged[reward.name].score for reward in own}
    # What an environment says beside that is recorded.
    scores |= {name: given(name, reply).score for name in reply.scores if name not in scores}
    verdict = compose(scores, weights, causes, gates=gates)
    return _lay_out(verdict, own, [judged[reward.name] for reward in own], len(reply.steps))


def _lay_out(verdict: Verdict, rewards: Sequence[Reward], judged: Sequence[Judged], count: int) -> Verdict:
    """The verdict with what came with each of `count` steps; what the whole reply got comes with the last of them."""
    weighted = [(reward.weight, one) for reward, one in zip(rewards, judged, strict=True) if reward.weight]
    if verdict.reward is None or not any(one.steps for _, one in weighted):
        return verdict
    steps = [0.0] * count
    for weight, one in weighted:
        scores = one.steps or (*[0.0] * (count - 1), one.score or 0.0)
        steps = [total + weight * value for total, value in zip(steps, scores, strict=True)]
    if not all(abs(total) < LARGEST_REWARD for total in steps):
        return Verdict(None, verdict.scores, f"the weighted sums of the steps are {steps}")
    if _shut(verdict.scores, {reward.name: reward.gate for reward in rewards if reward.gate is not None}):
        steps = [min(0.0, total) for total in steps]
        return replace(verdict, reward=float(sum(steps)), steps=tuple(steps))
    return replace(verdict, steps=tuple(steps))


def compose(
    scores: Mapping[str, float | None],
    weights: Mapping[str, float],
    causes: Mapping[str, str] | None = None,
    *,
    gates: Mapping[str, float] | None = None,
) -> Verdict:
    """reward = Σ weight · score over the scores with a weight ≠ 0, and min(0, that) if a score is below its gate.

    So an answer that fails a gate earns nothing, and can't escape a penalty by failing it. Where rewards come step by
    step the same is done to each step. None if a score with a weight or a gate is None.
    """
    needed = [name for name, weight in weights.items() if weight or name in (gates or {})]
    missing = [name for name in needed if scores.get(name) is None]
    if missing:
        cause = "; ".join(f"{name}: {(causes or {}).get(name, 'no verdict')}" for name in missing)
        return Verdict(None, scores, cause)
    total = sum(weight * (scores[name] or 0.0) for name, weight in weights.items() if weight)
    if not abs(total) < LARGEST_REWARD:
        return Verdict(None, scores, f"the weighted sum is {total}")
    return Verdict(min(0.0, float(total)) if _shut(scores, gates or {}) else float(total), scores)


def _shut(scores: Mapping[str, float | None], gates: Mapping[str, float]) -> bool:
    """Whether a score is below its gate."""
    return any((scores[name] or 0.0) < gate for name, gate in gates.items())
