"""Environments of the older API of `verifiers` (0.1.14, 0.2.1): `load_environment`, `MultiTurnEnv`, `Rubric`.

    env.rollout(row, client) ── client.get_response(messages) ─▶ messages ─▶ model ─▶ reply
    env.rubric.score_rollout(state) ─▶ scores

An environment asks a client for replies; here the client is the loop. A rubric of verifiers makes a 0 of a reward
function that raises. Here it is no verdict.
"""

from __future__ import annotations

import contextvars
import functools
import importlib.util
import inspect
import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

from treewise.env.asking import Ask, Asking
from treewise.types import Message, Problem

COLUMN = "verifiers_v0"  # of a problem: which row of which environment it is
_faults: contextvars.ContextVar[list[str]] = contextvars.ContextVar("faults")


def open_environment(name: str, options: Mapping[str, Any]) -> Any:
    """The environment of an installed package, made with `options`.

    Raises ValueError without an older verifiers, and for one that fails to load.
    """
    return _open(name, json.dumps(options, sort_keys=True))


@cache
def _open(name: str, options: str) -> Any:
    if importlib.util.find_spec("verifiers") is None or importlib.util.find_spec("verifiers.clients") is None:
        raise ValueError(f"the environment {name} needs the older API: pip install 'verifiers>=0.1.14,<0.3'")
    import verifiers

    try:
        env = verifiers.load_environment(name, **json.loads(options))
        for rubric in (*getattr(env.rubric, "rubrics", ()), env.rubric):
            rubric.funcs = [_noted(function) for function in rubric.funcs]
        env.build_dataset()
        return env
    except (Exception, SystemExit) as error:  # an environment is somebody's code
        raise ValueError(f"the environment {name} fails to load: {type(error).__name__}: {error}") from error


def _noted(function: Callable[..., Any]) -> Callable[..., Any]:
    """The reward function, with a note of what it raises."""

    @functools.wraps(function)
    async def called(*arguments: Any, **columns: Any) -> Any:
        try:
            value = function(*arguments, **columns)
            return await value if inspect.isawaitable(value) else value
        except Exception as error:
            _faults.get().append(f"{function.__name__}: {type(error).__name__}: {error}")
            raise

    return called


def rows(name: str, options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The rows of an environment's data set; `options["size"]` is how many, and the others make the environment.

    Raises ValueError like `open_environment`.
    """
    made_with = {key: value for key, value in options.items() if key != "size"}
    data = open_environment(name, made_with).get_dataset()
    for number, row in enumerate(itertools.islice(data, options.get("size"))):
        answer = row.get("answer")
        yield {
            "id": str(number),
            "prompt": _plain(row["prompt"]) if not isinstance(row["prompt"], str) else row["prompt"],
            **({} if answer in (None, "") else {"answer": answer}),
            COLUMN: {"environment": name, "options": made_with, "number": number},
        }


def endless(name: str, options: Mapping[str, Any]) -> bool:
    """Never: they have data sets."""
    return False


def _plain(messages: Sequence[Any]) -> list[Message]:
    """Raises ValueError for what is no text."""
    plain: list[Message] = []
    for message in messages:
        role, content = (
            message[key] if isinstance(message, Mapping) else message.get(key) for key in ("role", "content")
        )
        if not isinstance(content, str):
            raise ValueError(f"a message of the role {role} holds more than text: {content!r:.80}")
        plain.append({"role": role, "content": content})
    return plain


class VerifiersV0(Asking):
    """One row. The score `reward` is what the environment's rubric says; its parts and its metrics are recorded."""

    weights: Mapping[str, float] = {"reward": 1.0}

    def __init__(self, problem: Problem) -> None:
        super().__init__(partial(_play, *_row_of(problem)))
        self._prompt = problem.prompt

    @staticmethod
    def check(problem: Problem) -> None:
        """Raises ValueError for a row that can't be played here."""
        env, row = _row_of(problem)
        info = json.loads(row["info"]) if isinstance(row.get("info"), str) else row.get("info") or {}
        reasons = {
            "its model calls tools through the server's own format": bool(env.tool_defs or info.get("tool_defs")),
            "its rubric compares the answers of a group": bool(env.rubric.has_group_rewards),
            f"its messages are of the type {env.message_type}": env.message_type != "chat",
        }
        for reason, applies in reasons.items():
            if applies:
                raise ValueError(f"problem {problem.id!r} of {type(env).__name__} can't be played: {reason}")

    async def start(self) -> Sequence[Message]:
        asked = await super().start()
        # The prompt as the recipe made it, with its system message and template.
        return asked if isinstance(self._prompt, str) else self._prompt


async def _play(env: Any, row: Mapping[str, Any], ask: Ask) -> dict[str, float | None]:
    """One episode, and its scores. Raises what the environment or a reward function raised."""
    state = await env.rollout(dict(row), _client(ask), "policy", {})
    if state.get("error") is not None:
        raise state["error"]
    faults: list[str] = []
    _faults.set(faults)
    await env.rubric.score_rollout(state)
    if faults:
        raise RuntimeError("; ".join(faults))
    return {**state["metrics"], "reward": state["reward"]}


def _client(ask: Ask) -> Any:
    """A client of verifiers that asks the loop."""
    from verifiers.clients.client import Client
    from verifiers.errors import OverlongPromptError
    from verifiers.types import Response, ResponseMessage

    class Loop(Client):  # type: ignore[misc]
        said = 0

        async def get_response(self, prompt: Any, model: str, *_: Any, **__: Any) -> Any:
            new, self.said = prompt[self.said :], len(prompt) + 1
            if not new:
                raise RuntimeError("the environment takes back what was said, which a transcript can't")
            reply = await ask(_plain(new))
            if reply is None:
                raise OverlongPromptError("there is no room for another reply")
            thought, closed, text = reply.rpartition("</think>")
            message = ResponseMessage(
                content=text.strip() if closed else reply,
                reasoning_content=thought if closed else None,
                finish_reason="stop",
                is_truncated=False,
            )
            return Response(id="", created=int(time.time()), model=model, message=message)

    Loop.__abstractmethods__ = frozenset()
    return Loop(None)


def _row_of(problem: Problem) -> tuple[Any, Mapping[str, Any]]:
    """Raises ValueError for a problem that is no row of an environment."""
    named = problem.info.get(COLUMN)
    if not isinstance(named, Mapping):
        raise ValueError(
            f"problem {problem.id!r} is no row of verifiers, which env.name = 'verifiers_v0' plays: take them from "
            "data.source = 'verifiers_v0:NAME'"
        )
    env = open_environment(named["environment"], named["options"])
    return env, env.get_dataset()[named["number"]]
