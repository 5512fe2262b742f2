"""One function in a subprocess that can be killed, for code that may hang, crash or eat memory.

    Worker("package.module:function").call(deadline=3.0, x=1) ──JSON──▶ subprocess ──JSON──▶ result
                                                  no result in time: killed, and a new one is started

It works in any thread and process and uses no signals here: a hang inside of C code or of one huge
integer operation never gives the interpreter a chance to look at an alarm.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection, Pipe
from typing import Any

_START_SECONDS = 60.0  # importing may be slow, and it is not the task's fault
_MEMORY_BYTES = 4 * 2**30


class WorkerError(RuntimeError):
    """The function raised, or its process died."""


class Worker:
    """Calls `target` ("module:function", JSON in and out) in one subprocess, one call at a time.

    Args:
        warm_up: arguments of a first call that belongs to the start-up.
        called: what messages call the function, if it isn't `target`.
    """

    def __init__(self, target: str, *, warm_up: Mapping[str, Any] | None = None, called: str | None = None) -> None:
        self._target = target
        self._warm_up = warm_up
        self._called = called or target
        self._owner = os.getpid()  # a fork gets its own subprocess and its own lock
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._ready = False
        self._stop: Callable[[], object] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"target": self._target, "warm_up": self._warm_up, "called": self._called}

    def __setstate__(self, state: dict[str, Any]) -> None:
        Worker.__init__(self, **state)

    def call(self, *, deadline: float, **arguments: Any) -> Any:
        """The function's result.

        Raises TimeoutError after `deadline` seconds (start-up doesn't count) and WorkerError if it failed.
        """
        if self._owner != os.getpid():
            self.__setstate__(self.__getstate__())
        with self._lock:
            connection = self._connect()
            try:
                connection.send_bytes(json.dumps({"deadline": deadline, "arguments": arguments}).encode())
                if not connection.poll(deadline):
                    self.close()
                    self._start()  # it gets ready while nobody waits
                    raise TimeoutError(f"no result within {deadline:g} s")
                reply = json.loads(connection.recv_bytes())
            except TimeoutError:
                raise
            except (EOFError, OSError) as error:
                self.close()
                raise WorkerError(f"the process of {self._called} died") from error
        if "error" in reply:
            raise WorkerError(reply["error"])
        return reply["value"]

    def close(self) -> None:
        """Kill the subprocess; the next call starts a new one."""
        if self._stop is not None:
            self._stop()
        self._stop, self._connection, self._ready = None, None, False

    def _connect(self) -> Connection:
        if self._connection is None:
            self._start()
        connection = self._connection
        assert connection is not None, "_start sets it"
        if not self._ready:
            if not connection.poll(_START_SECONDS):
                self.close()
                raise WorkerError(f"the process of {self._called} didn't start within {_START_SECONDS:g} s")
            try:
                reply = json.loads(connection.recv_bytes())
            except EOFError:
                reply = {"error": f"the process of {self._called} died while it started"}
            if "error" in reply:
                self.close()
                raise WorkerError(reply["error"])
            self._ready = True
        return connection

    def _start(self) -> None:
        ours, theirs = Pipe()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
        arguments = [str(theirs.fileno()), self._target, json.dumps(self._warm_up)]
        process = subprocess.Popen(
            [sys.executable, "-m", "treewise.reward.worker", *arguments],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # model output that a grader prints must not reach the terminal
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for us: the run goes on to save
            env=environment,
        )
        theirs.close()
        self._connection, self._ready = ours, False
        self._stop = weakref.finalize(self, _kill, process, ours, os.getpid())


def _kill(process: subprocess.Popen[bytes], connection: Connection, owner: int) -> None:
    connection.close()
    if owner == os.getpid():  # after a fork the process is somebody else's
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with what it started; it leads a session of its own
        process.wait()


def serve(connection: Connection, target: str, warm_up: Mapping[str, Any] | None) -> None:
    """The subprocess: import `target`, then answer calls until the other side is gone."""
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    module, _, name = target.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
        if warm_up is not None:
            function(**warm_up)
    except Exception as error:
        connection.send_bytes(json.dumps({"error": f"{type(error).__name__}: {error}"}).encode())
        return
    connection.send_bytes(b"{}")
    while True:
        try:
            request = json.loads(connection.recv_bytes())
        except EOFError:
            return
        # If the parent is killed while this hangs, the kernel ends it: no Python handler is involved.
        signal.setitimer(signal.ITIMER_REAL, request["deadline"] + 5)
        try:
            reply = json.dumps({"value": function(**request["arguments"])})
        except Exception as error:  # the caller's function may fail in any way
            reply = json.dumps({"error": f"{type(error).__name__}: {error}"})
        signal.setitimer(signal.ITIMER_REAL, 0)
        connection.send_bytes(reply.encode())


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])), sys.argv[2], json.loads(sys.argv[3]))
