"""Environment × sampler × rewards: from problems to groups of trajectories.

    problem ─┬─▶ episode 0 ─▶ ┐         ┌─▶ reply ─▶ … ─▶ scores ─▶ trajectory 0 ┐
             ├─▶ episode 1 ─▶ ├ sampler ┤                                        ├─▶ group
             └─▶ …            ┘         └─▶ …                                    ┘

Episodes run side by side. Each turn waits until all that still play have asked for a reply, and draws these as one
batch, in the order of problems and answers. Groups keep the order of the problems, and every reply has its own seed, so
the outcome depends neither on who finishes first nor on the state of a generator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from treewise.chat import Chat
from treewise.env.single_turn import SingleTurn
from treewise.episode import Episode, Make, play
from treewise.patience import Patience
from treewise.reward import Reply, Reward, Verdict, score
from treewise.sampler import Request, Sampler
from treewise.sections import EnvSection
from treewise.steps import SEPARATOR, last_tokens, split_steps
from treewise.types import Completion, Group, IntArray, Problem, Sampling, Trajectory


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
    make: Make = SingleTurn,
    env: EnvSection | None = None,
) -> list[Group]:
    """Play and judge a group of episodes of each problem.

    Args:
        problems: one group each, in this order.
        group_size: G.
        seed: identifies the batch; turn t of answer g to problem p draws from the seed (*seed, p, g, t), but for the
            first turn, which draws from (*seed, p, g).
        step_separator: what ends a step of an answer, for rewards that judge steps. Of several replies each is a step.
        make: the environment of a problem.
        env: the time that environments have, and what is done if they fail.

    Raises:
        ValueError: for an empty prompt, a stop string that no reply can have, or a reward that is wrong for every
            reply. A reward or an environment that fails leaves that trajectory without a verdict.
    """
    chat.check_stop(sampling.stop)
    work = _collect(
        problems, group_size, sampler, sampling, chat, rewards, tuple(seed), step_separator, make, env or EnvSection()
    )
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
    make: Make,
    env: EnvSection,
) -> list[Group]:
    slots = asyncio.Semaphore(env.concurrency)
    patience = partial(Patience, slots, step_seconds=env.step_seconds, episode_seconds=env.episode_seconds)
    room = None if sampler.max_length is None else sampler.max_length - sampling.max_new_tokens
    turns = _Turns(sampler, sampling, playing=len(problems) * group_size)

    async def episode(number: int) -> Episode:
        own = (*seed, number // group_size, number % group_size)

        async def sample(prefix: IntArray, turn: int) -> tuple[Completion, str]:
            completion = await turns.draw(Request(prefix, (*own, turn) if turn else own))
            return completion, _text(completion, sampling, chat)

        played = await play(
            make,
            problems[number // group_size],
            sample=sample,
            chat=chat,
            room=room,
            patience=patience,
            retries=env.retries,
        )
        turns.leave()  # not after an error: it ends all episodes, and nobody needs another reply
        return played

    episodes = await asyncio.gather(*map(episode, range(len(problems) * group_size)))
    replies = [
        _reply(problems[number // group_size], played, chat, step_separator) for number, played in enumerate(episodes)
    ]
    verdicts = await score(rewards, replies)
    trajectories = [
        _trajectory(played, reply, verdict, chat)
        for played, reply, verdict in zip(episodes, replies, verdicts, strict=True)
    ]
    return [
        Group(problem, tuple(trajectories[number * group_size : (number + 1) * group_size]))
        for number, problem in enumerate(problems)
    ]


class _Turns:
    """Draws a batch of replies as soon as every episode that still plays waits for one."""

    def __init__(self, sampler: Sampler, sampling: Sampling, *, playing: int) -> None:
        self._sampler, self._sampling = sampler, sampling
        self._playing = playing
        self._waiting: list[tuple[Request, asyncio.Future[Completion]]] = []

    async def draw(self, request: Request) -> Completion:
        """The reply to one request."""
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, future))
        self._draw_if_all_wait()
        return await future

    def leave(self) -> None:
        """An episode is over."""
        self._playing -= 1
        self._draw_if_all_wait()

    def _draw_if_all_wait(self) -> None:
        if not self._waiting or len(self._waiting) < self._playing:
            return
        batch, self._waiting = sorted(self._waiting, key=lambda waiting: waiting[0].seed), []
        try:
            completions = self._sampler.sample([request for request, _ in batch], self._sampling)
        except ValueError as error:  # the requests' fault, so of those who made them
            for _, future in batch:
                future.set_exception(error)
            return
        for (_, future), completion in zip(batch, completions, strict=True):
            future.set_result(completion)


def _text(completion: Completion, sampling: Sampling, chat: Chat) -> str:
    """What the model said: without special tokens, and without the stop string that ended it."""
    text = chat.decode(completion.tokens)
    if completion.stop_reason == "stop":
        return text[: min(at for at in (text.find(stop) for stop in sampling.stop) if at >= 0)]
    return text


def _reply(problem: Problem, episode: Episode, chat: Chat, step_separator: str) -> Reply:
    """What is judged of an episode: the replies of what was played, however many, or the steps of the one reply."""
    last = episode.replies[-1] if episode.replies else ""
    return Reply(
        problem,
        last,
        prefill=chat.prefill,
        completion_ids=episode.completions[-1].tokens.tolist() if episode.completions else (),
        steps=tuple(episode.replies) if episode.played else split_steps(last, step_separator),
        turns=episode.turns if episode.played else (),
        scores=episode.scores,
        failure=episode.cause,
        environment=episode.judged,
    )


def _trajectory(episode: Episode, reply: Reply, verdict: Verdict, chat: Chat) -> Trajectory:
    ends = episode.ends
    if verdict.steps and not episode.played:
        first = ends[0] + 1 - len(reply.completion_ids)
        ends = [first + end for end in last_tokens(reply.steps, reply.completion_ids, chat.decode)]
    steps: dict[int, float] = {}
    for end, value in zip(ends, verdict.steps, strict=bool(verdict.steps)):
        steps[end] = steps.get(end, 0.0) + value  # of two steps that end in one token the rewards add up
    return Trajectory(
        tokens=episode.tokens,
        sampled=episode.sampled,
        logprobs=episode.logprobs,
        text="\n\n".join(episode.replies),
        reward=verdict.reward,
        stop_reason=episode.stop_reason,
        scores=verdict.scores,
        cause=verdict.cause,
        version=episode.completions[-1].version if episode.completions else 0,
        steps=tuple(steps.items()),
        starts=tuple(episode.starts),
    )
