"""Starts a supervisor from treewise's side, and asks it."""

from __future__ import annotations

import marshal
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# What any interpreter may need, besides its own folder.
_SYSTEM = (
    "/usr", "/lib", "/lib32", "/lib64", "/bin", "/nix/store", "/gnu/store",
    "/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime",
)  # fmt: skip


class SandboxError(RuntimeError):
    """The sandbox failed, or can't be set up on this machine. It says nothing about the program."""


def interpreter() -> str:
    """The interpreter, not that of a virtual environment, which needs a chain of links."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def readable_by_all(path: str) -> bool:
    """Whether every user can get at a program."""
    return all(place.stat().st_mode & 1 for place in (Path(path), *Path(path).parents))


def site_packages() -> list[str]:
    """Where packages are installed."""
    return [path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages")]


def visible() -> list[tuple[str, str]]:
    """(path, where it really is) of what an interpreter needs to start."""
    libraries = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    wanted = [*_SYSTEM, sys.base_prefix, sys.base_exec_prefix, interpreter(), *filter(os.path.isabs, libraries)]
    found: dict[str, str] = {}
    for path in sorted(map(os.path.abspath, wanted)):
        source = os.path.realpath(path)
        shown = any(path.startswith(f"{above}/") and source == at + path[len(above) :] for above, at in found.items())
        if os.path.exists(path) and path != "/" and not shown:
            found[path] = source
    return list(found.items())


def ask(request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """What a new supervisor answers within so many seconds. Raises SandboxError."""
    root = str(Path(__file__).parents[2])
    start = f"import sys; sys.path.append({root!r}); from treewise.jail.supervisor import main; main()"
    try:
        process = subprocess.Popen(
            [interpreter(), "-I", "-S", "-c", start],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
            env={name: value for name, value in os.environ.items() if name == "LD_LIBRARY_PATH"},
            start_new_session=True,  # Ctrl-C is for us
        )
    except OSError as error:
        raise SandboxError(f"the supervisor of a program can't be started: {error}") from error
    try:
        answer, trouble = process.communicate(marshal.dumps(dict(request)), timeout=seconds)
    except subprocess.TimeoutExpired:
        raise SandboxError(f"the supervisor of a program gave no answer within {seconds:.0f} s") from None
    finally:
        _stop(process)
    if not answer:
        last = trouble.decode(errors="replace").strip().splitlines()[-1:]
        raise SandboxError(f"the supervisor of a program has died, exit code {process.returncode} {''.join(last)}")
    reply = dict(marshal.loads(answer))
    if "error" in reply:
        raise SandboxError(f"the sandbox of a program failed: {reply['error']}")
    return reply


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a supervisor that still runs; asked to, it ends its program first."""
    if process.poll() is None:
        process.terminate()
        try:
            process.communicate(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
