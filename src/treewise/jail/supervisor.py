"""The two processes that start a program, watch it, and end all that is left of it.

    treewise ──request──▶ guard ──▶ watcher ──▶ program ──▶ whatever it starts
             ◀───────results──────────┘  what it used and wrote

Where there are namespaces the watcher is their init: the kernel ends all in them with it. Elsewhere both adopt orphans,
so that they find them. The guard ends when treewise does, the watcher when the guard does, and each takes with it what
is below.
"""

from __future__ import annotations

import marshal
import os
import select
import signal
import sys
import time
from contextlib import suppress
from typing import Any

from treewise.jail import kernel, processes
from treewise.jail.lock import Lock
from treewise.jail.scratch import remove

_TICK = 0.02  # seconds between two looks at what a program uses


def main() -> None:
    """Answer the request on standard input; `treewise.sandbox` makes it."""
    request = marshal.loads(sys.stdin.buffer.read())
    request["serial"] = os.getpid()
    signal.signal(signal.SIGTERM, _on_terminate)
    if "namespaces" in request["using"]:
        kernel.separate()
    else:
        kernel.adopt_orphans()
    kernel.die_with_parent(signal.SIGTERM)
    if os.getppid() != request["parent"]:  # it has ended already
        return
    watcher = os.fork()
    if watcher == 0:
        _watcher(request)
    try:
        os.waitpid(watcher, 0)
    finally:
        processes.end_all(processes.kill_family)
        if request["base"]:
            remove(request["base"])


def _watcher(request: dict[str, Any]) -> None:
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # if the machine's memory runs out, take this and what it starts, and nobody else
    if "namespaces" in request["using"]:
        kernel.die_with_parent(signal.SIGKILL)
    else:
        kernel.die_with_parent(signal.SIGTERM)
        kernel.adopt_orphans()
    try:
        _answer(request)
    finally:
        os._exit(0)


def _on_terminate(number: int, frame: Any) -> None:
    raise SystemExit  # what was started is ended on the way out


def _answer(request: dict[str, Any]) -> None:
    try:
        reply: dict[str, Any] = {"results": _serve(request)}
    except Exception as error:  # whatever the kernel refuses
        reply = {"error": f"{type(error).__name__}: {error}"}
    sys.stdout.buffer.write(marshal.dumps(reply))
    sys.stdout.buffer.flush()


def _serve(request: dict[str, Any]) -> list[dict[str, Any]]:
    """One result for every input, until the total time is used up."""
    base, inside = request["base"], "namespaces" in request["using"]
    if inside:
        kernel.shrink_root(request["visible"])
    with open(f"{base}/program.py", "wb") as file:
        file.write(request["program"])
    os.chmod(f"{base}/program.py", 0o444)
    if inside:
        kernel.freeze_root()
    jail = Jail(request)
    results: list[dict[str, Any]] = []
    for given in request["inputs"]:
        if sum(result["wall"] for result in results) >= request["total_seconds"]:
            break
        results.append(jail.run(given))
    return results


class Jail:
    """Runs one program, time after time."""

    def __init__(self, request: dict[str, Any]) -> None:
        self._limits, self._lock = request["limits"], Lock(request)
        self._scratch = self._lock.scratch
        self._spent = self._starved = 0.0

    def run(self, given: bytes) -> dict[str, Any]:
        """Start the program with `given` on its standard input, and wait for its end."""
        with self._scratch:
            return self._run(given)

    def _run(self, given: bytes) -> dict[str, Any]:
        self._spent, self._starved = processes.cpu_of_the_ended(), 0.0
        killed = processes.killed_for_memory()
        stdin, stdout, stderr, trouble = os.pipe(), os.pipe(), os.pipe(), os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                self._lock.become_program(stdin[0], stdout[1], stderr[1])
            except BaseException as error:  # is told to who waits for the start
                os.write(trouble[1], f"{type(error).__name__}: {error}".encode())
            os._exit(127)
        for end in (stdin[0], stdout[1], stderr[1], trouble[1]):
            os.close(end)
        output = {stdout[0]: bytearray(), stderr[0]: bytearray()}
        try:
            with os.fdopen(trouble[0], "rb") as file:  # closed by a start that succeeds
                if text := file.read():
                    raise RuntimeError(f"the program can't be started: {text.decode()}")
            started = time.monotonic()
            code, stopped = self._watch(pid, stdin[1], given, output)
            wall, seconds = time.monotonic() - started, self._seconds(processes.family())
        finally:
            processes.end_all(self._lock.kill)
        texts = [self._rest(descriptor, begun) for descriptor, begun in output.items()]
        if stopped is None and code == -signal.SIGKILL and processes.killed_for_memory() > killed:
            raise RuntimeError("the machine ran out of memory and killed the program")
        if stopped is None and (code == -signal.SIGXCPU or seconds > self._limits["seconds"]):
            stopped = "time"
        if stopped is None and code != 0:
            stopped = "memory" if b"MemoryError" in texts[1][-300:] else "failed"
        errors = texts[1].replace(b'File "%s"' % self._lock.program.encode(), b'File "program.py"')
        return {
            "outcome": stopped or "finished",
            "code": code,
            "stdout": texts[0],
            "stderr": errors.replace(self._scratch.path.encode(), b"/tmp"),
            "seconds": seconds,
            "wall": wall - self._starved,  # while others had the processors, it couldn't help taking longer
        }

    def _watch(self, pid: int, stdin: int, given: bytes, output: dict[int, bytearray]) -> tuple[int, str | None]:
        """(exit code, which limit the program was stopped for)."""
        started = looked = time.monotonic()
        left = memoryview(given)
        os.set_blocking(stdin, False)
        poll = select.poll()
        waiting = {stdin, *output}
        for descriptor in output:
            poll.register(descriptor, select.POLLIN)
        poll.register(stdin, select.POLLOUT)
        try:
            while True:
                for descriptor, _ in poll.poll(1000 * _TICK if waiting - {stdin} else 1):
                    if descriptor == stdin:
                        left = _send(stdin, left)
                        done = not left
                    else:
                        chunk = os.read(descriptor, 65536)
                        output[descriptor] += chunk
                        done = not chunk
                    if done:
                        poll.unregister(descriptor)
                        waiting.discard(descriptor)
                        if descriptor == stdin:
                            os.close(stdin)
                if (status := processes.reap(pid)) is not None:
                    return os.waitstatus_to_exitcode(status), None
                now = time.monotonic()
                stopped = "output" if sum(map(len, output.values())) > self._limits["output"] else None
                if stopped is None and now - looked > _TICK:
                    looked, stopped = now, self._exceeded(now - started)
                if stopped is not None:
                    return -signal.SIGKILL, stopped
        finally:
            if stdin in waiting:
                os.close(stdin)

    def _seconds(self, family: list[int]) -> float:
        return processes.cpu_of_the_ended() - self._spent + processes.cpu_of(family)

    def _exceeded(self, wall: float) -> str | None:
        """The limit that the program and all it has started are above."""
        limits, family = self._limits, processes.family()
        self._starved = max(self._starved, processes.starved(family))
        if self._seconds(family) > limits["seconds"] or wall - self._starved > limits["wall"]:
            return "time"
        if processes.memory_of(family) > limits["memory"]:
            return "memory"
        if len(family) > limits["processes"]:  # root's processes are not limited by the kernel
            return "processes"
        return "disk" if self._scratch.is_too_full() else None

    def _rest(self, descriptor: int, begun: bytearray) -> bytes:
        """What was written, up to the limit. Nobody writes any more."""
        os.set_blocking(descriptor, False)
        try:
            while len(begun) < self._limits["output"] and (chunk := os.read(descriptor, 65536)):
                begun += chunk
        except BlockingIOError:
            pass
        os.close(descriptor)
        return bytes(begun[: self._limits["output"]])


def _send(descriptor: int, left: memoryview) -> memoryview:
    """What is still to be sent."""
    try:
        return left[os.write(descriptor, left[:65536]) :]
    except BlockingIOError:
        return left
    except OSError:  # nobody reads it
        return left[:0]
