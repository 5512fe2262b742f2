"""A user's reward function in a process that is killed when its time is up.

    Isolated("rewards.py:judge", …) ──JSON──▶ process: rewards.judge(completion=…) ──JSON──▶ score
                                     no score in time, or the process dies: no verdict, and a new process

A hang in Python or in C, a crash, `os._exit` and a memory that fills up (4 GiB) cost one reply its verdict. What the
function prints goes nowhere. Arguments and scores travel as JSON: tuples arrive as lists.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import numbers
from collections.abc import Awaitable, Callable, Mapping
from decimal import Decimal
from functools import cache
from typing import Any

from treewise.named import find
from treewise.reward.call import NoVerdict
from treewise.reward.worker import Worker, WorkerError


class Isolated:
    """The function that `spec` names, called in a process that starts on first use.

    Args:
        signature: of the function, which decides what it is given.
        made_with: options of the class that `spec` names; `None` if it names a function.
        seconds: time for one reply; loading the file is not part of it.
    """

    def __init__(
        self, spec: str, signature: inspect.Signature, *, made_with: Mapping[str, Any] | None, seconds: float
    ) -> None:
        self.__signature__ = signature
        self.seconds = seconds
        self._function = {"spec": spec, "made_with": made_with}
        self._worker = Worker(
            "treewise.reward.isolated:judge", warm_up={**self._function, "arguments": None}, called=spec
        )

    def __call__(self, **arguments: Any) -> Any:
        """The function's score. Raises NoVerdict if there is none."""
        try:
            result = self._worker.call(deadline=self.seconds, **self._function, arguments=arguments)
        except (TimeoutError, WorkerError) as error:
            raise NoVerdict(str(error)) from error
        except (TypeError, ValueError) as error:
            raise NoVerdict(f"its arguments can't be sent to its process as JSON: {error}") from error
        if "no_verdict" in result:
            raise NoVerdict(result["no_verdict"])
        return result["value"]

    def close(self) -> None:
        """End the process; the next call starts a new one."""
        self._worker.close()


def judge(
    *, spec: str, made_with: Mapping[str, Any] | None, arguments: Mapping[str, Any] | None
) -> dict[str, Any] | None:
    """In the process: call the function; without arguments only load it."""
    function = _found(spec, None if made_with is None else json.dumps(made_with))
    if arguments is None:
        return None
    try:
        value = function(**arguments)
        if inspect.isawaitable(value):
            value = asyncio.run(_awaited(value))
    except NoVerdict as error:
        return {"no_verdict": str(error)}
    return {"value": _plain(value)}


@cache
def _found(spec: str, made_with: str | None) -> Callable[..., Any]:
    found = find(spec, {}, "a reward function")
    return found if made_with is None else found(**json.loads(made_with))  # type: ignore[no-any-return]


async def _awaited(value: Awaitable[Any]) -> Any:
    return await value


def _plain(value: Any) -> Any:
    """Numbers of NumPy, torch and others as JSON has them."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, numbers.Real | Decimal) and not isinstance(value, int | float):
        return float(value)
    return value
