"""One way to lock a program in, of those that the machine has, and the way to find all that it has started."""

from __future__ import annotations

import os
import signal
from typing import Any

from treewise.jail import kernel, processes
from treewise.jail.scratch import Scratch

_HEAP = 2**26  # bytes of address space


class Lock:
    """For the programs of one request.

    Attributes:
        program: its file.
        scratch: the folder that it may write to.
    """

    def __init__(self, request: dict[str, Any]) -> None:
        self._request, self._limits, self._using = request, request["limits"], request["using"]
        self._inside = "namespaces" in self._using
        self.program = f"{request['base']}/program.py"
        self._fresh = kernel.fresh_user(request["serial"]) if "user" in self._using else None
        self._user = None if self._fresh is None else (self._fresh, self._fresh)
        if self._fresh is not None and not self._readable_by(self._fresh):
            # The interpreter lies in root's own folder: stay its owner, without root's rights, and counted apart.
            self._user = (self._fresh, os.geteuid())
        owner = self._user[1] if self._user else os.geteuid()
        self.scratch = Scratch(f"{request['base']}/tmp", owner, self._limits["disk"], mounted=self._inside)

    def become_program(self, stdin: int, stdout: int, stderr: int) -> None:
        """Lock this process in, and run the program in it."""
        limits, inside = self._limits, self._inside
        os.setsid()
        for number, end in enumerate((stdin, stdout, stderr)):
            os.dup2(end, number)
        os.umask(0o077)
        os.chdir(self.scratch.path)
        apart = self._user is not None and self._user[0] == self._user[1]
        # Between two users the C library ignores that it shall have one heap for all threads.
        heaps = 0 if apart or self._user is None else _HEAP * limits["processes"]
        kernel.limit(
            cpu=int(limits["seconds"]) + 2,
            memory=limits["memory"] + heaps,
            file=limits["disk"],
            processes=limits["processes"] + self._counted_already(),
        )
        kernel.forget_privileges(self._user)
        if not inside:
            kernel.die_with_parent(signal.SIGKILL)
        if "landlock" in self._using and not inside:
            kernel.only_files([*(source for _, source in self._request["visible"]), self.program], self.scratch.path)
        if "seccomp" in self._using:
            kernel.filter_calls(local_sockets=inside, shared=not inside and not apart)
        variables = {"HOME": self.scratch.path, "TMPDIR": self.scratch.path, **self._request["variables"]}
        command = [*self._request["command"], self.program]
        os.execve(command[0], command, variables)

    def kill(self) -> None:
        """Kill what the program has left."""
        if self._inside:
            processes.kill_everything()
        elif self._user is not None:
            processes.kill_as(self._user[0])
        else:
            processes.kill_family()

    def _readable_by(self, user: int) -> bool:
        pid = os.fork()
        if pid == 0:
            os.setresuid(user, user, user)
            readable = os.access(self._request["command"][0], os.X_OK) and os.access(os.__file__, os.R_OK)
            os._exit(0 if readable else 1)
        return os.waitpid(pid, 0)[1] == 0

    def _counted_already(self) -> int:
        """How many processes there are already of the user whose processes the kernel limits."""
        if self._user is not None:
            return 0
        if self._inside and kernel.counts_by_namespace():
            return 2  # the supervisor and init
        return processes.threads_of(os.geteuid())
