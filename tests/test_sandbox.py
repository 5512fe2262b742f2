"""The sandbox, attacked for real: each way of locking a program in has to hold."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from treewise import sandbox
from treewise.sandbox import MECHANISMS, Limits, Result, SandboxError, protections, run, run_each

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="programs are run on Linux only")

WAYS = {"namespaces": MECHANISMS, "container": ("landlock", "seccomp", "user")}
QUICK = Limits(seconds=0.5, wall_seconds=3.0, memory_mb=256, output_bytes=100_000, disk_mb=8, processes=16)


@pytest.fixture(params=WAYS)
def using(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """What protects: all there is, and what is left of it in most containers."""
    way = WAYS[request.param]
    lacks_namespaces = request.param == "namespaces" and protections(("namespaces",))["files"] is None
    if lacks_namespaces or None in protections(way).values():
        pytest.skip(f"no {request.param} for this user on this kernel: {sandbox.describe(way)}")
    return way


def tried(program: str, using: tuple[str, ...], limits: Limits = QUICK, **how: Any) -> Result:
    return run(program, limits=limits, using=using, **how)


def processes_with(mark: str) -> list[int]:
    """Processes of this machine with a word in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if mark.encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return [pid for pid in found if pid != os.getpid()]


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def folders() -> set[Path]:
    """Those that programs write to."""
    return set(Path(tempfile.gettempdir()).glob("treewise-*"))


def wait_for(what: Any, seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while not (there := what()) and time.monotonic() < end:
        time.sleep(0.02)
    return bool(there)


# What a program does


def test_a_program_reads_and_writes(using: tuple[str, ...]) -> None:
    done = tried("import sys\nprint(input()[::-1])\nprint('é', file=sys.stderr)", using, stdin="äbc\n")
    assert (done.outcome, done.code, done.stdout, done.stderr) == ("finished", 0, "cbä\n", "é\n")


@pytest.mark.parametrize(
    ("program", "code", "stderr"),
    [
        ("1/0", 1, 'File "program.py", line 1, in <module>'),
        ("raise SystemExit(3)", 3, ""),
        ("import os; os.abort()", -signal.SIGABRT, ""),
        ("print(", 1, "SyntaxError"),
        ("x = '\x00'", 1, "null bytes"),
        ("def f(n): return f(n + 1)\nf(0)", 1, "RecursionError"),
    ],
)
def test_a_program_that_fails_has_failed(using: tuple[str, ...], program: str, code: int, stderr: str) -> None:
    done = tried(program, using)
    assert (done.outcome, done.code) == ("failed", code)
    assert stderr in done.stderr


def test_the_same_program_says_the_same(using: tuple[str, ...]) -> None:
    program = "import os\nprint({str(n) for n in range(50)}, hash('a'))\nos.rmdir(os.getcwd() + '/none')"
    first, second = tried(program, using), tried(program, using)
    assert (first.stdout, first.stderr) == (second.stdout, second.stderr)
    assert "'/tmp/none'" in first.stderr


def test_each_input_is_a_start_of_its_own(using: tuple[str, ...]) -> None:
    program = "import os\nprint(input(), os.listdir())\nopen('left', 'w')\nos.umask(0o777)\nos.mkdir('a')"
    done = run_each(program, ["1", "2", ""], limits=QUICK, using=using)
    assert [result.stdout for result in done] == ["1 []\n", "2 []\n", ""]
    assert [result.outcome for result in done] == ["finished", "finished", "failed"]


def test_the_total_time_ends_a_row_of_starts(using: tuple[str, ...]) -> None:
    done = run_each("import time; time.sleep(float(input()))", ["0.3", "0.3", "0"], using=using, total_seconds=0.5)
    assert [result.outcome for result in done] == ["finished", "finished", "skipped"]


def test_long_inputs_and_outputs_pass(using: tuple[str, ...]) -> None:
    text = "0123456789" * 100_000
    done = tried("import sys; sys.stdout.write(sys.stdin.read())", using, Limits(output_bytes=2_000_000), stdin=text)
    assert (done.outcome, done.stdout == text) == ("finished", True)
    unread = tried("print('ok')", using, stdin=text)
    assert (unread.outcome, unread.stdout) == ("finished", "ok\n")


def test_threads_and_processes_work(using: tuple[str, ...]) -> None:
    program = """
import subprocess, sys, threading
threading.stack_size(2**26)
found = []
worker = threading.Thread(target=lambda: found.append(subprocess.run([sys.executable, "-c", "print(7)"],
    capture_output=True, text=True).stdout))
worker.start(); worker.join(); print(found)
"""
    assert tried(program, using).stdout == "['7\\n']\n"


def test_many_threads_have_room(using: tuple[str, ...]) -> None:
    program = """
from concurrent.futures import ThreadPoolExecutor
import threading
gate = threading.Barrier(28)
with ThreadPoolExecutor(28) as pool: print(sum(pool.map(lambda n: gate.wait(5) and 1 or 1, range(28))))
"""
    assert tried(program, using, Limits()).stdout == "28\n"


def test_time_that_others_had_the_processors_is_not_counted(using: tuple[str, ...]) -> None:
    busy = "import time\nwhile time.process_time() < 0.2: pass\nprint('done')"
    # Groups of processes share the processors evenly, so each of these has a group of its own.
    others = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
        for _ in range(3 * len(os.sched_getaffinity(0)))
    ]
    try:
        started = time.monotonic()
        done = tried(busy, using, Limits(wall_seconds=0.3))
        assert time.monotonic() - started > 0.3, "the others were not in the way"
        assert (done.outcome, done.stdout) == ("finished", "done\n")
    finally:
        for other in others:
            other.kill()
            other.wait()


def test_packages_are_there_only_if_asked_for(using: tuple[str, ...]) -> None:
    program = "import numpy; print(numpy.ones(3) @ numpy.ones(3))"
    assert "No module named 'numpy'" in tried(program, using).stderr
    assert tried(program, using, Limits(), packages=True).stdout == "3.0\n"


def test_packages_may_lie_in_the_folder_of_temporary_files(
    using: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where many a virtual environment of a CI is."""
    with tempfile.TemporaryDirectory(prefix="test-packages-") as folder:
        packages = Path(folder) / "site-packages"
        packages.mkdir()
        (packages / "there.py").write_text("word = 'found'")
        os.chmod(folder, 0o755)
        monkeypatch.setattr(sys, "path", [*sys.path, str(packages)])
        program = "import os, there; open('file', 'x'); print(there.word, os.listdir())"
        assert tried(program, using, Limits(seconds=4), packages=True).stdout == "found ['file']\n"


def test_several_run_at_once(using: tuple[str, ...]) -> None:
    def one(number: int) -> str:
        return tried(f"import time; time.sleep(0.05); open('file', 'x').write('a'); print({number})", using).stdout

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(one, range(12))) == [f"{number}\n" for number in range(12)]


# Limits are verdicts


@pytest.mark.parametrize(
    ("program", "outcome"),
    [
        ("while True: pass", "time"),
        ("9**9**9", "time"),
        ("import os\nfor _ in range(4): os.fork()\nwhile True: pass", "time"),
        ("import signal\nsignal.signal(signal.SIGXCPU, lambda *_: None)\nwhile True: pass", "time"),
        ("x = []\nwhile True: x.append(bytearray(10**7))", "memory"),
        ("x = bytearray(10**10)", "memory"),
        ("import os\nfor _ in range(3): os.fork()\nx = b'x' * (60 * 2**20)\nimport time; time.sleep(9)", "memory"),
        ("while True: print('x' * 10_000)", "output"),
        ("import os\nwhile True: os.write(2, b'x' * 10_000)", "output"),
    ],
)
def test_a_limit_that_is_exceeded_is_a_verdict(using: tuple[str, ...], program: str, outcome: str) -> None:
    done = tried(program, using)
    assert done.outcome == outcome
    assert len(done.stdout) <= QUICK.output_bytes
    assert len(done.stderr) <= QUICK.output_bytes


def test_a_program_that_sleeps_is_stopped(using: tuple[str, ...]) -> None:
    started = time.monotonic()
    limits = Limits(wall_seconds=0.3)
    assert tried("import time; time.sleep(60)", using, limits).outcome == "time"
    assert tried("import os; os.close(1); os.close(2)\nimport time; time.sleep(60)", using, limits).outcome == "time"
    assert time.monotonic() - started < 10


def test_a_fork_bomb_is_ended(using: tuple[str, ...]) -> None:
    bomb = """
import os, subprocess, sys
print("lit", flush=True)
while True:
    try:
        if os.fork() == 0:
            os.setsid()
            os.execv(sys.executable, [sys.executable, "-c", "import os\\nwhile True:\\n try: os.fork()\\n"
                     " except OSError: pass\\n# bomb-of-the-test"])
    except OSError:
        pass
"""
    done = tried(bomb, using)
    assert done.outcome in ("time", "processes")
    assert done.stdout == "lit\n"
    assert processes_with("bomb-of-the-test") == []


@pytest.fixture
def scratch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where nobody else has scratch folders; the program's user must get through."""
    with tempfile.TemporaryDirectory(prefix="test-sandbox-") as folder:
        os.chmod(folder, 0o711)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


@pytest.mark.parametrize(
    "program",
    [
        "while True: os.write(os.open('file', os.O_CREAT | os.O_WRONLY | os.O_APPEND), b'x' * 2**20)",
        "n = 0\nwhile True:\n    n += 1\n    open(str(n), 'wb').write(b'x' * 2**20)",
        "n = 0\nwhile True:\n    n += 1\n    os.mkdir(str(n))",
        "while True:\n    os.mkdir('a')\n    os.chdir('a')",
        "while True: os.truncate(os.memfd_create('a'), 0)",
        "os.posix_fallocate(os.open('file', os.O_CREAT | os.O_WRONLY), 0, 2**30)",
    ],
)
def test_the_disk_is_not_filled(using: tuple[str, ...], program: str, scratch: Path) -> None:
    before, left = os.statvfs("/tmp"), folders()
    done = tried(f"import os\n{program}", using, Limits(disk_mb=8, seconds=1))
    assert done.outcome in ("failed", "disk", "time")
    after = os.statvfs("/tmp")
    assert (before.f_bfree - after.f_bfree) * before.f_frsize < 64 * 2**20
    assert folders() == left


def test_nothing_survives_the_program(using: tuple[str, ...]) -> None:
    program = """
import os, sys
ready, done = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.set_inheritable(done, True)
        code = f"import os, time, signal; signal.signal(15, signal.SIG_IGN); os.write({done}, b'x'); time.sleep(60)"
        os.execv(sys.executable, [sys.executable, "-c", code + "  # daemon-of-the-test"])
    os._exit(0)
os.read(ready, 1)
print("started")
"""
    assert tried(program, using, Limits(wall_seconds=20)).stdout == "started\n"
    assert processes_with("daemon-of-the-test") == []


# Escapes


def test_secrets_stay_secret(using: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_TEST", "open-sesame")
    secret = tmp_path / "secret"
    secret.write_text("open-sesame")
    descriptor = os.open(secret, os.O_RDONLY)
    os.set_inheritable(descriptor, True)
    program = f"""
import glob, os
found = [str(dict(os.environ))]
for path in [{str(secret)!r}, *glob.glob("/proc/[0-9]*/environ"), *(f"/proc/{{n}}/environ" for n in ({os.getpid()}, 1)),
             *(f"/proc/{os.getpid()}/fd/{{n}}" for n in range(64))]:
    try:
        found.append(open(path, errors="replace").read())
    except OSError:
        pass
for n in range(3, 256):
    try:
        found.append(os.pread(n, 100, 0).decode())
    except OSError:
        pass
print(found)
"""
    done = tried(program, using)
    os.close(descriptor)
    assert done.outcome == "finished"
    assert "HOME" in done.stdout
    assert "open-sesame" not in done.stdout


def test_files_outside_stay_as_they_are(using: tuple[str, ...], tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("here")
    victim.chmod(0o640)
    outside = [str(tmp_path / "new"), "/new", "/usr/new", "/var/tmp/new", "/dev/shm/../../new", "../new", "/etc/new"]
    program = f"""
import os, sys
def attempt(what, *arguments):
    try:
        what(*arguments)
        print(what.__name__, arguments)
    except OSError:
        pass
for path in {outside}:
    attempt(open, path, "w")
    attempt(os.mkdir, path)
for what in (os.remove, os.listdir, lambda path: open(path, "a").write("x")):
    attempt(what, {str(victim)!r})
attempt(os.chmod, {str(victim)!r}, 0o777)
attempt(os.chown, {str(victim)!r}, os.getuid(), -1)
attempt(os.setxattr, {str(victim)!r}, "user.mark", b"x")
attempt(os.rename, {str(victim)!r}, "mine")
attempt(os.link, {str(victim)!r}, "mine")
attempt(os.remove, sys.argv[0])
attempt(open, sys.argv[0], "w")
attempt(open, os.__file__, "a")
os.symlink({str(victim)!r}, "link")
attempt(open, "link", "r+")
open("own", "w").write("fine")
print("end")
"""
    assert tried(program, using).stdout == "end\n"
    assert victim.read_text() == "here"
    assert os.listdir(tmp_path) == ["victim"]
    assert (victim.stat().st_mode & 0o777, os.listxattr(victim)) == (0o640, [])


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.3)
        yield listening


def test_the_network_is_cut(using: tuple[str, ...], server: socket.socket, tmp_path: Path) -> None:
    local = socket.socket(socket.AF_UNIX)
    local.bind("\0name-of-the-test")
    local.listen()
    local.settimeout(0.1)
    port = server.getsockname()[1]
    program = f"""
import socket
for family, kind, address in [
    (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", {port})),
    (socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", {port})),
    (socket.AF_UNIX, socket.SOCK_STREAM, "\\0name-of-the-test"),
]:
    try:
        s = socket.socket(family, kind)
        s.settimeout(0.5)
        s.connect(address)
        s.send(b"hello")
        print("connected", address)
    except OSError as error:
        pass
print("end")
"""
    assert tried(program, using).stdout == "end\n"
    for listening in (server, local):
        with pytest.raises(TimeoutError):
            listening.accept()
    local.close()
    with socket.create_connection(("127.0.0.1", port)):  # from outside it can be reached
        server.accept()[0].close()


def test_signals_reach_no_other_process(using: tuple[str, ...]) -> None:
    got: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: got.append(number))
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    program = f"""
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
for pid in ({os.getpid()}, {other.pid}, os.getppid(), 1, -1, -{os.getpgid(0)}):
    for number in (signal.SIGUSR1, signal.SIGKILL):
        if pid == {os.getpid()} and number == signal.SIGKILL:
            continue
        try:
            if pid > 0 or number == signal.SIGUSR1:
                signal.signal(signal.SIGUSR1, signal.SIG_IGN)
                os.kill(pid, number)
        except OSError:
            pass
        libc.tgkill(pid, pid, number)
print("alive")
"""
    try:
        assert (
            tried(
                program,
                using,
                Limits(),
            ).stdout
            == "alive\n"
        )
        assert got == []
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
        signal.signal(signal.SIGUSR1, before)


def test_system_calls_that_lead_out_are_closed(using: tuple[str, ...]) -> None:
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    program = f"""
import ctypes, os, resource
libc = ctypes.CDLL(None, use_errno=True)
tries = {{
    "unshare": lambda: libc.unshare(0x10000000),
    "clone": lambda: libc.syscall(56 if os.uname().machine == "x86_64" else 220, 0x10000000 | 17, 0, 0, 0, 0),
    "ptrace": lambda: libc.ptrace(16, os.getppid(), 0, 0),
    "mount": lambda: libc.mount(b"none", b"/tmp", b"tmpfs", 0, None),
    "chroot": lambda: libc.chroot(b"/tmp"),
    "setuid": lambda: libc.setresuid(0, 0, 0) if os.getuid() else -1,
    "io_uring": lambda: libc.syscall(425, 1, ctypes.create_string_buffer(256)),
    "other's limits": lambda: libc.prlimit({os.getpid()}, 7, (ctypes.c_ulong * 2)(9, 9), None),
    "the kernel's settings": lambda: open("/proc/sys/kernel/domainname", "w").write("x"),
    "other's priority": lambda: libc.setpriority(0, {os.getpid()}, 19) if {nice} < 19 else -1,
    "its parent's limits": lambda: libc.prlimit(os.getppid(), 7, (ctypes.c_ulong * 2)(9, 9), None),
    "more processes": lambda: (resource.setrlimit(resource.RLIMIT_NPROC, (10**5, 10**5)), 0)[1],
}}
for name, attempt in tries.items():
    try:
        if attempt() >= 0:
            print(name)
    except (OSError, ValueError):
        pass
print("end")
"""
    assert tried(program, using).stdout == "end\n"


def test_the_program_has_no_privileges(using: tuple[str, ...]) -> None:
    program = """
import ctypes
header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
libc = ctypes.CDLL(None)
print(libc.capget(header, data), list(data), libc.prctl(39, 0, 0, 0, 0))
"""
    assert tried(program, using).stdout == "0 [0, 0, 0, 0, 0, 0] 1\n"


# The sandbox itself fails


def test_a_supervisor_that_is_killed_is_no_verdict(using: tuple[str, ...]) -> None:
    program = "import os, sys\nos.execv(sys.executable, [sys.executable, '-c', 'import time; time.sleep(60)#orphaned'])"
    raised: list[Any] = []

    def work() -> None:
        try:
            raised.append(tried(program, using, Limits(wall_seconds=60)))
        except SandboxError as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert wait_for(lambda: processes_with("time.sleep(60)#orphaned"))
    supervisors = [pid for pid in processes_with("treewise.jail") if os.getpid() == parent_of(pid)]
    assert len(supervisors) == 1
    os.kill(supervisors[0], signal.SIGKILL)
    thread.join(20)
    assert "has died, exit code -9" in str(raised[0])
    assert wait_for(lambda: not processes_with("time.sleep(60)#orphaned"))


def test_programs_end_with_treewise(using: tuple[str, ...]) -> None:
    code = f"""
from treewise.sandbox import run
run("import os, sys, subprocess\\nsubprocess.run([sys.executable, '-c', 'import time; time.sleep(60)#left'])",
    using={using!r})
"""
    before = folders()
    parent = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": ":".join(sys.path)})
    try:
        assert wait_for(lambda: processes_with("time.sleep(60)#left"))
    finally:
        parent.kill()
        parent.wait()
    assert wait_for(lambda: not processes_with("#left"))
    assert wait_for(lambda: folders() == before)


def test_a_sandbox_that_can_not_start_is_no_verdict(using: tuple[str, ...], scratch: Path) -> None:
    tried("", using)
    before = folders()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(SandboxError, match="can't be started"):
            tried("print(1)", using)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for left in folders() - before:  # removing a folder takes a descriptor, too
            left.rmdir()


def test_a_folder_that_is_not_there_is_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("", using=(), unprotected=True)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(SandboxError, match="there is no folder for a program"):
        run("print(1)", using=(), unprotected=True)


def test_without_protection_nothing_runs() -> None:
    assert set(protections(()).values()) == {None}
    with pytest.raises(SandboxError, match="keep a program from network, files, processes .nothing may be used."):
        run("print(1)", using=())
    assert run("print(1)", using=(), unprotected=True).stdout == "1\n"
    assert "NOT from network" in sandbox.describe(())
    with pytest.raises(ValueError, match="'docker' is no mechanism of the sandbox: there are namespaces, landlock"):
        protections(("docker",))


def test_limits_in_which_nothing_can_run_are_refused() -> None:
    with pytest.raises(SandboxError, match=r"with Limits\(seconds=0.001.* an empty program ends with"):
        run("print(1)", limits=Limits(seconds=0.001), unprotected=True)
    with pytest.raises(ValueError, match="the limit memory_mb is 8: Python itself needs 32"):
        Limits(memory_mb=8)
    for name in Limits.__slots__:
        with pytest.raises(ValueError, match=f"the limit {name} is 0: it must be above 0"):
            Limits(**{name: 0})
