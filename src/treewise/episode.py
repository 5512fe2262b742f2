"""One episode: environment and model take turns, and what was said is kept token by token.

    start() ─▶ prompt ─▶ model ─▶ reply ─▶ step(reply) ─▶ messages ─▶ model ─▶ … ─▶ step(reply) ─▶ [] ─▶ scores()

    tokens    <user>⏎ 3 + 4?<end>⏎<assistant>⏎ │ 7<end> │ ⏎<user>⏎ and 5 more?<end>⏎<assistant>⏎ │ 12<end>
    sampled   no                               │ yes    │ no                                     │ yes

A reply stays the tokens that were sampled; only what stands between two replies is encoded. Where the chat template
changes earlier turns (many take the thinking out of them) the model is given a new transcript, and the episode is
trained as several: the old one ends with the reply, the new one begins with all that is left of the turns before.

    ⏎ 3 + 4?  <think> easy </think> 7      │  ⏎ 3 + 4?  7  and 5 more?  <think> hm </think> 12
    no        yes                          │  no                        yes

A method of the environment that raises or takes too long leaves the episode without a verdict, never with a score of 0.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from treewise.chat import Chat
from treewise.env import Environment, Score
from treewise.env.single_turn import SingleTurn
from treewise.patience import Failed, Patience
from treewise.text import inert
from treewise.types import BoolArray, Completion, FloatArray, IntArray, Message, Problem, StopReason, fresh

Make = Callable[[Problem], Environment]
Sample = Callable[[IntArray, int], Awaitable[tuple[Completion, str]]]  # transcript, turn ─▶ reply and its text
_SURROGATE = re.compile("[\ud800-\udfff]")  # half of a pair has no tokens


@dataclass(slots=True)
class Episode:
    """What was said, and what the environment says of it.

    Attributes:
        replies: the model's texts.
        completions: their tokens.
        turns: replies and what the environment said to them, as messages.
        ends: [turns] position of each reply's last token.
        starts: positions at which another transcript begins.
        scores: the environment's, by name; a list has one for every reply.
        cause: why there are none.
        full: the model's context had no room for another reply.
        judged: the environment as reward functions get it.
        played: whether there is an environment, rather than a problem that is asked once. Then each reply is a step of
            what is judged, also where there is one only.
    """

    replies: list[str] = field(default_factory=list)
    completions: list[Completion] = field(default_factory=list)
    turns: list[Message] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    scores: Mapping[str, Score] = field(default_factory=dict)
    cause: str | None = None
    full: bool = False
    judged: Any = None
    played: bool = True
    _tokens: list[IntArray] = field(default_factory=list)
    _logprobs: list[FloatArray | None] = field(default_factory=list)

    def give(self, ids: IntArray) -> None:
        """Append what the model is given."""
        self._tokens.append(ids)
        self._logprobs.append(None)

    def begin_again(self, ids: IntArray) -> None:
        """Leave the transcript as it is; the model is given another one."""
        self.starts.append(len(self.tokens))
        self.give(ids)

    def take(self, completion: Completion, text: str) -> None:
        """Append what the model replied."""
        self._tokens.append(completion.tokens)
        self._logprobs.append(completion.logprobs)
        self.completions.append(completion)
        self.replies.append(text)
        self.turns.append({"role": "assistant", "content": text})
        self.ends.append(len(self.tokens) - 1)

    @property
    def tokens(self) -> IntArray:
        """[L] all transcripts."""
        return np.concatenate([np.empty(0, dtype=np.int64), *self._tokens])

    @property
    def transcript(self) -> IntArray:
        """The last of them, which the next reply follows."""
        return self.tokens[self.starts[-1] if self.starts else 0 :]

    @property
    def sampled(self) -> BoolArray:
        """[L] what the model wrote."""
        parts = zip(self._tokens, self._logprobs, strict=True)
        return np.concatenate([np.empty(0, dtype=bool), *(np.full(len(ids), own is not None) for ids, own in parts)])

    @property
    def logprobs(self) -> FloatArray:
        """[L] of the sampler, 0 where it did not sample."""
        parts = zip(self._tokens, self._logprobs, strict=True)
        return np.concatenate([np.empty(0), *(np.zeros(len(ids)) if own is None else own for ids, own in parts)])

    @property
    def stop_reason(self) -> StopReason:
        """Of the last reply; `length` also where no other one had room, `environment` where there is none."""
        if self.full:
            return "length"
        return self.completions[-1].stop_reason if self.completions else "environment"


async def play(
    make: Make,
    problem: Problem,
    *,
    sample: Sample,
    chat: Chat,
    room: int | None,
    patience: Callable[[], Patience],
    retries: int = 0,
) -> Episode:
    """Play an episode to its end. One in which the environment fails is played again, up to `retries` times.

    Args:
        make: a new environment for the problem.
        sample: draws the reply to a transcript.
        room: tokens of the longest transcript that a reply may follow.
    """
    episode = Episode()
    for _ in range(retries + 1):
        episode, call = Episode(), patience()
        try:
            own = replace(problem, prompt=fresh(problem.prompt), info=fresh(problem.info))
            await _play(episode, await call("make", make, own), sample, chat, room, call)
        except Failed as failure:
            episode.cause = str(failure)
        else:
            break
    return episode


async def _play(
    episode: Episode, environment: Environment, sample: Sample, chat: Chat, room: int | None, call: Patience
) -> None:
    episode.played = not isinstance(environment, SingleTurn)
    try:
        episode.judged = getattr(environment, "judged", environment)
    except Exception as error:  # a property may fail in any way
        raise Failed(inert(f"judged: {type(error).__name__}: {error}")) from error
    prompt = await call("start", environment.start)
    said: list[Message] = [] if isinstance(prompt, str) else _messages(prompt, "start")
    if isinstance(prompt, str):
        _check_text(prompt, "start")
    if not prompt:
        raise Failed("start() returned nothing for the model to reply to")
    ids = _encoded("start", chat.encode_prompt, prompt if isinstance(prompt, str) else said)
    if room is not None and len(ids) > room:
        raise Failed(f"start() returned {len(ids)} tokens, and the model has room for {room} before a reply")
    episode.give(ids)
    while True:
        completion, text = await sample(episode.transcript, len(episode.replies))
        episode.take(completion, text)
        more = _messages(await call("step", environment.step, text), "step")
        episode.turns += more
        if not more or completion.stop_reason == "length":
            break
        between = _encoded("step", chat.encode_between, prompt if isinstance(prompt, str) else said, text, more)
        said += [{"role": "assistant", "content": chat.prefill + text}, *more]
        if between is None:
            ids, before = _encoded("step", chat.encode_prompt, said), 0
        else:
            # The model may have ended its turn itself.
            ended = completion.stop_reason == "eos" and between[:1].tolist() == completion.tokens[-1:].tolist()
            ids, before = between[int(ended) :], len(episode.transcript)
        if room is not None and before + len(ids) > room:
            episode.full = True
            break
        (episode.give if before else episode.begin_again)(ids)
    scores = await call("scores", environment.scores)
    if not isinstance(scores, Mapping):
        raise Failed(inert(f"scores() returned {scores!r:.80}, not numbers by name"))
    episode.scores = scores


def _encoded(method: str, encode: Callable[..., Any], *given: Any) -> Any:
    """Raises Failed for what the chat template refuses, such as two user messages in a row: it is a program, too."""
    try:
        return encode(*given)
    except Exception as error:
        raise Failed(inert(f"what {method}() returned can't be encoded: {type(error).__name__}: {error}")) from error


def _messages(given: Any, method: str) -> list[Message]:
    """Fresh messages with a role and a content. Raises Failed for anything else."""
    whole = isinstance(given, Sequence) and not isinstance(given, str)
    if not whole or not all(isinstance(one, Mapping) and _is_message(one) for one in given):
        raise Failed(inert(f"{method}() returned {given!r:.80}, not messages with a text `role` and a text `content`"))
    for one in given:
        _check_text(one["role"], method)
        _check_text(one["content"], method)
    return [{"role": one["role"], "content": one["content"]} for one in given]


def _check_text(text: str, method: str) -> None:
    """Raises Failed for what no tokenizer takes."""
    found = _SURROGATE.search(text)
    if found:
        around = text[max(0, found.start() - 20) : found.end() + 20]
        raise Failed(inert(f"{method}() returned half of a surrogate pair, which is no text: {around!r}"))


def _is_message(one: Mapping[str, Any]) -> bool:
    return one.keys() == {"role", "content"} and all(isinstance(value, str) for value in one.values())
