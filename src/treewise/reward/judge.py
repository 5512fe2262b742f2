"""A judge model behind any server that speaks OpenAI's chat completions, such as vLLM's.

    reply ──▶ asked before? ──▶ calls left? ──▶ server, tried again ──▶ "Verdict: correct" ──▶ 1.0
                                     no verdict and why ◀── anything else, or nothing in time

A policy can try to talk to its judge. The reply stands between two lines that it can't foresee, which keeps it from
closing the quotation, and is no guarantee that the judge isn't persuaded.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import inspect
import json
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any, NamedTuple
from urllib.parse import urlsplit

from pydantic import Field, validate_call

from treewise.reward.call import NoVerdict
from treewise.reward.verdict import Verdicts, columns_of, read_verdict, shown, write_prompt
from treewise.types import Message

Positive = Annotated[int, Field(ge=1)]


class _Open(NamedTuple):
    """A client, which belongs to one event loop, and how many requests it may have at one time."""

    client: Any
    slots: asyncio.Semaphore
    loop: asyncio.AbstractEventLoop


class Judge:
    """The score that a judge model gives a reply.

    Args:
        model: what the server calls it.
        base_url: of the server, up to and with /v1.
        api_key_env: name of the environment variable with the key; the key itself is never written anywhere.
        rubric: what the judge shall look at; a column `rubric` of the data comes before it.
        template: the question to the judge, with {marker}, {reply}, {marker} and, as wanted, {question}, {answer},
            {rubric} and columns of the data.
        choices: the words that a verdict can be, with their scores; by default correct 1 and incorrect 0.
        scale: in place of words a number from the first to the second one, which become 0 and 1.
        parameters: further fields of the request.
        deadline: seconds for one reply, with everything that is tried again.
        retries: how often a request is sent again after a lost connection, a 429 (`Retry-After` is heeded) or a 5xx.
        concurrency: requests at one time.
        max_calls: replies that one process may send to the judge; later ones have no verdict.
        cache: JSONL file that keeps the verdicts, so that none is paid for twice.
    """

    @validate_call
    def __init__(
        self,
        model: str,
        base_url: str,
        api_key_env: str | None = None,
        rubric: str | None = None,
        template: str | None = None,
        choices: dict[str, float] | None = None,
        scale: tuple[float, float] | None = None,
        parameters: dict[str, Any] | None = None,
        deadline: Annotated[float, Field(gt=0)] = 60.0,
        retries: Annotated[int, Field(ge=0)] = 3,
        concurrency: Positive = 16,
        max_calls: Positive | None = None,
        cache: str | None = None,
    ) -> None:
        if importlib.util.find_spec("openai") is None:
            raise ValueError('the reward "judge" needs the package openai: pip install "treewise[judge]"')
        if "@" in urlsplit(base_url).netloc or urlsplit(base_url).query:
            raise ValueError("base_url with a password or a query would write it into the records; use api_key_env")
        if choices is not None and scale is not None:
            raise ValueError("a verdict is one of `choices` or on a `scale`, not both")
        if scale is not None and not scale[0] < scale[1]:
            raise ValueError(f"scale = {scale} must rise")
        if choices is not None and len({word.casefold() for word in choices}) < max(2, len(choices)):
            raise ValueError(f"choices = {choices} must be two or more words that differ by more than case")
        self._key = "none" if api_key_env is None else os.environ.get(api_key_env, "")
        if not self._key:
            raise ValueError(f"the environment variable {api_key_env}, which api_key_env names, is not set")
        self._reading: dict[str, Any] = {"choices": choices or {"correct": 1.0, "incorrect": 0.0}, "scale": scale}
        self._template, self._rubric = template, rubric
        self._request = {"model": model, **({"temperature": 0.0} if parameters is None else parameters)}
        self._server: dict[str, Any] = {"base_url": base_url, "max_retries": retries, "timeout": deadline}
        self._deadline, self._concurrency, self._max_calls = deadline, concurrency, max_calls
        self._calls = 0
        self._verdicts = Verdicts(cache)
        self._asked: dict[str, asyncio.Future[float]] = {}  # equal replies of a group get one verdict
        self._open: _Open | None = None
        self._working = 0
        own = ["completion", "prompt", *([] if template is None else columns_of(template))]
        keyword = inspect.Parameter.KEYWORD_ONLY
        self.__signature__ = inspect.Signature(
            [inspect.Parameter(name, keyword) for name in own]
            + [inspect.Parameter(name, keyword, default=None) for name in ("answer", "turns", "rubric")]
        )

    async def __call__(
        self,
        *,
        completion: str,
        prompt: str | Sequence[Message],
        answer: str | None = None,
        turns: Sequence[Message] | None = None,
        rubric: str | None = None,
        **columns: Any,
    ) -> float:
        """The judge's score of a reply, or of an episode of several. Raises NoVerdict if there is none."""
        values = {
            **columns,
            "question": shown(prompt),
            "reply": shown(turns) if turns else completion,
            "answer": answer or "",
            "rubric": rubric or self._rubric or "",
        }
        text = write_prompt(self._template, values, **self._reading)
        decisive = [self._server["base_url"], self._request, text, self._reading]
        key = hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()
        known = self._verdicts.get(key)
        if known is not None:
            return known
        if key not in self._asked:
            self._asked[key] = asyncio.ensure_future(self._judge(key, text))
            self._asked[key].add_done_callback(lambda _: self._asked.pop(key))
        return await self._asked[key]

    async def _judge(self, key: str, text: str) -> float:
        if self._max_calls is not None and self._calls >= self._max_calls:
            raise NoVerdict(f"the budget of max_calls = {self._max_calls} is spent")
        self._calls += 1
        async with self._client() as client:
            try:
                async with asyncio.timeout(self._deadline):
                    response = await client.chat.completions.create(
                        model=self._request["model"],
                        messages=[{"role": "user", "content": text.encode(errors="replace").decode()}],
                        extra_body={name: value for name, value in self._request.items() if name != "model"},
                    )
            except TimeoutError:
                raise NoVerdict(f"the judge gave no answer within {self._deadline:g} s") from None
            except Exception as error:  # a server and the network may fail in any way
                raise NoVerdict(self._without_key(f"the judge failed: {type(error).__name__}: {error}")) from None
        try:
            first = response.choices[0]
            said, cut = first.message.content, first.finish_reason == "length"
            score = read_verdict(said, **self._reading)
        except NoVerdict as error:
            raise NoVerdict(self._without_key(str(error))) from None
        except Exception:  # the package doesn't check what a server sends
            raise NoVerdict("the judge sent something else than an answer") from None
        if cut:
            raise NoVerdict("the judge's answer was cut at its token limit")
        self._verdicts.put(key, score, self._without_key(said))
        return score

    def _without_key(self, text: str) -> str:
        return text if self._key == "none" else text.replace(self._key, "[key]")

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[Any]:
        """A client with a free slot, shared by all replies of a batch and closed behind the last one."""
        from openai import AsyncOpenAI

        if self._open is None or self._open.loop is not asyncio.get_running_loop():
            slots = asyncio.Semaphore(self._concurrency)
            client = AsyncOpenAI(api_key=self._key, **self._server)
            self._open, self._working = _Open(client, slots, asyncio.get_running_loop()), 0
        mine = self._open
        self._working += 1
        try:
            async with mine.slots:
                yield mine.client
        finally:
            self._working -= 1
            if not self._working:
                self._open = None
                await mine.client.close()
