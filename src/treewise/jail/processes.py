"""What the processes below this one use, from /proc (proc(5)), and how all of them are ended."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_END_SECONDS = 10.0


def _read(path: str) -> str:
    """A file of /proc, empty if its process has ended."""
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def _threads(pid: int) -> list[str]:
    try:
        return [f"/proc/{pid}/task/{thread}" for thread in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def family() -> list[int]:
    """All descendants of this process; orphans are its children."""
    found: list[int] = []
    ask = [os.getpid()]
    while ask:
        pid = ask.pop()
        children = [int(child) for task in _threads(pid) for child in _read(f"{task}/children").split()]
        found += children
        ask += children
    return found


def can_see_children() -> bool:
    """Whether the kernel says who the children of a process are."""
    return os.path.exists(f"/proc/self/task/{os.getpid()}/children")


def cpu_of_the_ended() -> float:
    """CPU seconds of all descendants that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def cpu_of(pids: Iterable[int]) -> float:
    """CPU seconds of running processes, and of the children that they have waited for."""
    fields = (_read(f"/proc/{pid}/stat").rpartition(")")[2].split() for pid in pids)
    return sum(int(ticks) for known in fields for ticks in known[11:15]) / _TICKS


def memory_of(pids: Iterable[int]) -> int:
    """Bytes of main memory that processes don't share with a file."""
    fields = (_read(f"/proc/{pid}/statm").split() for pid in pids)
    return _PAGE * sum(int(known[1]) - int(known[2]) for known in fields if known)


def starved(pids: Iterable[int]) -> float:
    """The longest time in seconds that one of the threads was ready to run and got no processor."""
    waits = (_read(f"{task}/schedstat").split() for pid in pids for task in _threads(pid))
    return max((int(known[1]) / 1e9 for known in waits if len(known) > 1), default=0.0)


def threads_of(user: int) -> int:
    """How many threads a user has on this machine."""
    count = 0
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == user:
                count += len(_threads(int(name)))
        except OSError:  # ended meanwhile
            continue
    return count


def killed_for_memory() -> int:
    """How many processes the kernel has killed since it started because the machine had no memory left."""
    return sum(int(line.split()[1]) for line in _read("/proc/vmstat").splitlines() if line.startswith("oom_kill "))


def reap(pid: int) -> int | None:
    """The status of a child if it has ended; orphans that have ended are taken away."""
    while True:
        found, status = os.waitpid(-1, os.WNOHANG)
        if found in (pid, 0):
            return status if found else None


def end_all(kill: Callable[[], None]) -> None:
    """Call `kill` until nothing is left below this process. Raises RuntimeError if something can't be ended."""
    end = time.monotonic() + _END_SECONDS
    while time.monotonic() < end:
        kill()
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.001)
    raise RuntimeError("some of the program's processes can't be ended")


def kill_everything() -> None:
    """All that this process may: all in the namespace of an init, all of a user who is no other's."""
    _kill(-1, signal.SIGKILL)


def kill_as(user: int) -> None:
    """All processes of a user, by root."""
    pid = os.fork()
    if pid == 0:
        os.setresuid(user, user, user)
        kill_everything()
        os._exit(0)
    os.waitpid(pid, 0)


def kill_family() -> None:
    """All descendants."""
    pids = family()
    for number in (signal.SIGSTOP, signal.SIGKILL):  # what stands still doesn't start others
        for pid in pids:
            _kill(pid, number)


def _kill(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
