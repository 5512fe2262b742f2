"""Runs Python programs that nobody has read: killable, limited, without network, away from the user's files.

    run("print(input())", "hello") ──▶ supervisor process ──▶ locked-in program ──▶ Result("finished", "hello\\n", …)

A program that exceeds a limit has failed, which is a verdict. `SandboxError` means that the sandbox has: that is none.
What protects is the kernel, and what it offers differs between machines: `protections()` says what there is. If one is
missing nothing runs, unless the caller accepts that. docs/environments.md says what is not protected at all.
"""

from __future__ import annotations

import functools
import os
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal

from treewise.jail import start
from treewise.jail.start import SandboxError

__all__ = [
    "MECHANISMS", "Limits", "Outcome", "Result", "SandboxError", "describe", "processors", "protections", "require",
    "run", "run_each",
]  # fmt: skip

Outcome = Literal["finished", "failed", "time", "memory", "output", "disk", "processes", "skipped"]
# Namespaces: own network, processes, file system. Landlock: files by path. seccomp: system calls by number.
# User: root starts the program as a user of its own.
MECHANISMS = ("namespaces", "landlock", "seccomp", "user")
_MEGABYTE = 2**20
_LEAST_MB = 32
_VARIABLES = {
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONUTF8": "1",
    "PYTHONHASHSEED": "0",  # the same program gives the same output
    "PYTHONINTMAXSTRDIGITS": "0",
    # A thread per processor of a large machine, or a heap per thread, would take the whole address space.
    "MALLOC_ARENA_MAX": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
_GRACE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What one start of a program may use, with all processes that it starts.

    Attributes:
        seconds: of CPU time.
        wall_seconds: from start to end; time in which others kept it from running doesn't count.
        memory_mb: of memory together, and of address space for each process.
        output_bytes: on stdout and stderr together.
        disk_mb: of files.
        processes: processes and threads at one time.
    """

    seconds: float = 5.0
    wall_seconds: float = 15.0
    memory_mb: int = 1024
    output_bytes: int = 1_000_000
    disk_mb: int = 64
    processes: int = 32

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not getattr(self, name) > 0:
                raise ValueError(f"the limit {name} is {getattr(self, name)!r}: it must be above 0")
        if self.memory_mb < _LEAST_MB:
            raise ValueError(f"the limit memory_mb is {self.memory_mb}: Python itself needs {_LEAST_MB}")


@dataclass(frozen=True, slots=True)
class Result:
    """How a program ended.

    Attributes:
        outcome: `finished` is an exit code of 0, `failed` another one or a signal, `skipped` that it wasn't started;
            the others name the limit that it exceeded.
        code: exit code, or minus the number of the signal that ended it.
        seconds: CPU time used.
    """

    outcome: Outcome
    code: int = 0
    stdout: str = ""
    stderr: str = ""
    seconds: float = 0.0


def run(program: str, stdin: str = "", *, limits: Limits | None = None, **how: Any) -> Result:
    """Run a program once; arguments as for `run_each`."""
    return run_each(program, [stdin], limits=limits, **how)[0]


def run_each(
    program: str,
    inputs: Sequence[str],
    *,
    limits: Limits | None = None,
    total_seconds: float = float("inf"),
    packages: bool = False,
    unprotected: bool = False,
    using: Sequence[str] = MECHANISMS,
) -> list[Result]:
    """Run a program once for every input, each time in a new, empty folder. Threads may call it at the same time; not
    more programs run at once than there are processors.

    Args:
        inputs: what stands on standard input.
        total_seconds: after so much wall time of all starts together the rest is skipped.
        packages: let it import what is installed beside treewise; otherwise the standard library only.
        unprotected: run even where `protections()` lacks something.
        using: what of the kernel may be used.

    Raises SandboxError.
    """
    limits = limits or Limits()
    require(limits=limits, packages=packages, unprotected=unprotected, using=using)
    with _slots():
        return _run(program, inputs, limits, total_seconds, packages=packages, using=_working(using))


def protections(using: Sequence[str] = MECHANISMS) -> dict[str, str | None]:
    """What keeps a program from the network, from files and from other processes on this machine; None: nothing.

    Raises ValueError for a mechanism that there isn't.
    """
    if unknown := sorted(set(using) - set(MECHANISMS)):
        raise ValueError(f"{unknown[0]!r} is no mechanism of the sandbox: there are {', '.join(MECHANISMS)}")
    works = _working(using)
    network = {"namespaces": "a network of its own", "seccomp": "no sockets"}
    files = {"namespaces": "a file system of its own", "landlock": "Landlock"}
    others = {"namespaces": "processes of its own"}
    if start.readable_by_all(start.interpreter()):  # otherwise it has to stay the owner of root's files and processes
        files["user"] = "a user of its own, who can read what everyone can"
        others["user"] = "a user of its own"
    others["seccomp"] = "no signals"
    return {
        what: next((text for name, text in ways.items() if name in works), None)
        for what, ways in {"network": network, "files": files, "processes": others}.items()
    }


def describe(using: Sequence[str] = MECHANISMS) -> str:
    """One line about what keeps programs from what."""
    found = protections(using).items()
    return "programs are kept " + ", ".join(
        f"from {what} by {how}" if how else f"NOT from {what}" for what, how in found
    )


def require(
    *,
    limits: Limits | None = None,
    packages: bool = False,
    unprotected: bool = False,
    using: Sequence[str] = MECHANISMS,
) -> None:
    """Raise SandboxError if no program can run on this machine, or within the limits, or if a protection is missing and
    not waived. The arguments are those of `run_each`."""
    missing = [what for what, how in protections(using).items() if how is None]
    if missing and not unprotected and _fault((), Limits()) is None:
        faults = ((name, _fault((name,), Limits())) for name in using)
        reasons = "; ".join(f"{name}: {fault}" for name, fault in faults if fault)
        raise SandboxError(
            f"nothing here can keep a program from {', '.join(missing)} ({reasons or 'nothing may be used'}), so none "
            "that a model wrote is run; where you don't mind, say unprotected = true"
        )
    if fault := _fault(_working(using), limits or Limits(), packages=packages):
        raise SandboxError(fault)


def _working(using: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in using if _fault((name,), Limits()) is None)


def processors() -> int:
    """How many programs run at one time."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1


@functools.cache
def _slots() -> threading.Semaphore:
    return threading.BoundedSemaphore(processors())


@functools.cache
def _fault(using: tuple[str, ...], limits: Limits, *, packages: bool = False) -> str | None:
    """Why an empty program can't be run with these mechanisms, within these limits."""
    if sys.platform != "linux":
        return f"programs can be run on Linux only, and this is {sys.platform}"
    try:
        (result,) = _run("", [""], limits, 60.0, packages=packages, using=using)
    except SandboxError as error:
        return str(error)
    return None if result.outcome == "finished" else f"with {limits} an empty program ends with {result}"


def _run(
    program: str, inputs: Sequence[str], limits: Limits, total_seconds: float, *, packages: bool, using: Sequence[str]
) -> list[Result]:
    """What `run_each` does, once it is known to be possible."""
    variables = {**_VARIABLES, **{name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}}
    # In a file system of its own they stand where nothing else does: they might lie in /tmp, which is the program's.
    own = "namespaces" in using
    found = enumerate(start.site_packages() if packages else ())
    places = [(f"/packages/{number}" if own else path, os.path.realpath(path)) for number, path in found]
    variables["PYTHONPATH"] = ":".join(path for path, _ in places)
    request = {
        "parent": os.getpid(),
        "using": list(using),
        "program": program.encode(errors="replace"),
        "inputs": [text.encode(errors="replace") for text in inputs],
        "command": [start.interpreter(), "-P", "-s", "-S", "-B"],
        "variables": variables,
        "visible": [*start.visible(), *places],
        "total_seconds": total_seconds,
        "limits": {
            "seconds": limits.seconds,
            "wall": limits.wall_seconds,
            "memory": limits.memory_mb * _MEGABYTE,
            "output": limits.output_bytes,
            "disk": limits.disk_mb * _MEGABYTE,
            "processes": limits.processes,
        },
    }
    patience = min(total_seconds, len(inputs) * limits.wall_seconds) + limits.wall_seconds + _GRACE_SECONDS
    with ExitStack() as stack:
        base = "" if own else stack.enter_context(_folder())
        reply = start.ask({**request, "base": base}, patience)
    results = [_result(**result) for result in reply["results"]]
    return results + [Result("skipped")] * (len(inputs) - len(results))


def _folder() -> tempfile.TemporaryDirectory[str]:
    try:
        folder = tempfile.TemporaryDirectory(prefix="treewise-", ignore_cleanup_errors=True)
        os.chmod(folder.name, 0o711)  # the program may be another user's
    except OSError as error:
        raise SandboxError(f"there is no folder for a program: {error}") from error
    return folder


def _result(*, outcome: Outcome, code: int, stdout: bytes, stderr: bytes, seconds: float, wall: float) -> Result:
    return Result(outcome, code, stdout.decode(errors="replace"), stderr.decode(errors="replace"), seconds)
