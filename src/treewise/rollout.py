"""Environment × sampler × rewards: from problems to groups of trajectories.

    problem ─┬─▶ episode 0 ─▶ prompt ─▶ ┐         ┌─▶ reply ─▶ scores ─▶ trajectory 0 ┐
             ├─▶ episode 1 ─▶ prompt ─▶ ├ sampler ┤                                   ├─▶ group
             └─▶ …                      ┘         └─▶ …                               ┘

The transcript is made of the token ids that went in and the ones that came out; nothing that was
sampled is ever decoded and encoded again. Groups keep the order of the problems, and every answer has
its own seed, so the outcome depends neither on who finishes first nor on the state of a generator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from treewise.chat import Chat
from treewise.env.single_turn import SingleTurn
from treewise.reward import Reply, Reward, Verdict, score
from treewise.sampler import Request, Sampler
from treewise.steps import SEPARATOR, last_tokens, split_steps
from treewise.types import Completion, Group, Problem, Sampling, Trajectory


def collect(
    problems: Sequence[Problem],
    *,
    group_size: int,
    sampler: Sampler,
    sampling: Sampling,
    chat: Chat,
    rewards: Sequence[Reward],
    seed: Sequence[int],
    step_separator: str = SEPARATOR,
) -> list[Group]:
    """Sample and judge a group of answers to each problem.

    Args:
        problems: one group each, in this order.
        group_size: G.
        seed: identifies the batch; answer g of problem p draws from the seed (*seed, p, g).
        step_separator: what ends a step of an answer, for rewards that judge steps.

    Raises:
        ValueError: for an empty or over-long prompt, or a reward that is wrong for every reply. A reward
            that fails on one reply leaves that trajectory without a verdict.
    """
    work = _collect(problems, group_size, sampler, sampling, chat, rewards, tuple(seed), step_separator)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    # A notebook has a loop of its own, which can't be entered again: use a thread that has none.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


async def _collect(
    problems: Sequence[Problem],
    group_size: int,
    sampler: Sampler,
    sampling: Sampling,
    chat: Chat,
    rewards: Sequence[Reward],
    seed: tuple[int, ...],
    step_separator: str,
) -> list[Group]:
    episodes = [SingleTurn(problem) for problem in problems for _ in range(group_size)]
    starts = await asyncio.gather(*(episode.start() for episode in episodes))
    # A group shares its prompt, so it is encoded once.
    encoded = [chat.encode_prompt(starts[number * group_size]) for number in range(len(problems))]
    prefixes = [prompt for prompt in encoded for _ in range(group_size)]
    requests = [
        Request(prefix, (*seed, number // group_size, number % group_size)) for number, prefix in enumerate(prefixes)
    ]
    completions = sampler.sample(requests, sampling)
    texts = [_text(completion, sampling, chat) for completion in completions]
    await asyncio.gather(*(episode.step(text) for episode, text in zip(episodes, texts, strict=True)))
    replies = [
        Reply(
            problems[number // group_size],
            text,
            prefill=chat.prefill,
            completion_ids=completion.tokens.tolist(),
            steps=split_steps(text, step_separator),
        )
        for number, (text, completion) in enumerate(zip(texts, completions, strict=True))
    ]
    verdicts = await score(rewards, replies)
    trajectories = [
        _trajectory(prompt, completion, reply, verdict, chat)
        for prompt, completion, reply, verdict in zip(prefixes, completions, replies, verdicts, strict=True)
    ]
    return [
        Group(problem, tuple(trajectories[number * group_size : (number + 1) * group_size]))
        for number, problem in enumerate(problems)
    ]


def _text(completion: Completion, sampling: Sampling, chat: Chat) -> str:
    """What the model said: without special tokens, and without the stop string that ended it."""
    text = chat.decode(completion.tokens)
    if completion.stop_reason == "stop":
        return text[: min(at for at in (text.find(stop) for stop in sampling.stop) if at >= 0)]
    return text


def _trajectory(prompt: np.ndarray, completion: Completion, reply: Reply, verdict: Verdict, chat: Chat) -> Trajectory:
    length = len(completion.tokens)
    ends = last_tokens(reply.steps, reply.completion_ids, chat.decode) if verdict.steps else []
    steps: dict[int, float] = {}
    for end, value in zip(ends, verdict.steps, strict=True):  # of two steps that end in one token the rewards add up
        steps[len(prompt) + end] = steps.get(len(prompt) + end, 0.0) + value
    return Trajectory(
        tokens=np.concatenate([prompt, completion.tokens]).astype(np.int64),
        sampled=np.concatenate([np.zeros(len(prompt), dtype=bool), np.ones(length, dtype=bool)]),
        logprobs=np.concatenate([np.zeros(len(prompt)), completion.logprobs]),
        text=reply.completion,
        reward=verdict.reward,
        stop_reason=completion.stop_reason,
        scores=verdict.scores,
        cause=verdict.cause,
        version=completion.version,
        steps=tuple(steps.items()),
    )
