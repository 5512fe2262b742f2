"""The time that an environment has: its methods are called, each within a limit, and given up behind it."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from treewise.text import inert


class Failed(Exception):
    """The environment failed; the message is the cause."""


class Patience:
    """Calls the methods of one environment, each within its time.

    Args:
        slots: bounds how many environments work at a time; waiting for one doesn't count as time.
        step_seconds: of one call.
        episode_seconds: of all calls of an episode; the model's own time doesn't count.
    """

    def __init__(self, slots: asyncio.Semaphore, *, step_seconds: float, episode_seconds: float) -> None:
        self._slots = slots
        self._step, self._left = step_seconds, episode_seconds

    async def __call__(self, name: str, method: Callable[..., Any], *arguments: Any) -> Any:
        """What the method returns. One that isn't async runs in a thread, and is left alone there if it hangs.

        Raises Failed.
        """
        async with self._slots:
            started, clock = time.monotonic(), asyncio.timeout(min(self._step, self._left))
            try:
                async with clock:
                    if inspect.iscoroutinefunction(method):
                        return await method(*arguments)
                    return await _in_thread(method, *arguments)
            except (Exception, SystemExit, asyncio.CancelledError) as error:  # an environment may fail in any way
                task = asyncio.current_task()
                if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                    raise  # the run is stopped
                if clock.expired():
                    seconds = min(self._step, self._left)
                    raise Failed(f"{name}() took longer than {seconds:.3g} s") from None
                raise Failed(inert(f"{name}(): {type(error).__name__}: {error}")) from error
            finally:
                self._left -= time.monotonic() - started


async def _in_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    """Not asyncio.to_thread: its threads are waited for at the end, also one that hangs."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if future.done():  # given up
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def work() -> None:
        result, fault = None, None
        try:
            result = function(*arguments)
        except BaseException as error:  # goes on to who waits for it
            fault = error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, result, fault)

    threading.Thread(target=work, daemon=True).start()
    return await future
