"""Ctrl-C and SIGTERM as a question that a loop asks when it can stop."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def interruptible(say: Callable[[], object] = lambda: None) -> Iterator[Callable[[], bool]]:
    """Whether there was a Ctrl-C or a SIGTERM, which also calls `say`; a second one raises KeyboardInterrupt."""
    asked = False

    def on_signal(number: int, frame: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        say()

    signals = (signal.SIGINT, signal.SIGTERM)
    try:
        before = [signal.signal(number, on_signal) for number in signals]
    except ValueError:  # not the main thread: signals are none of our business there
        yield lambda: False
        return
    try:
        yield lambda: asked
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler or signal.SIG_DFL)
