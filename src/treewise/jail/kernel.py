"""What the Linux kernel offers to lock a process in, through ctypes: namespaces, mounts, Landlock, seccomp, limits.

Sources: the manual pages unshare(2), user_namespaces(7), pivot_root(2), mount_setattr(2), landlock(7), seccomp(2),
capabilities(7), getrlimit(2); system call numbers from the kernel's own headers.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import struct

_LIBC = ctypes.CDLL(None, use_errno=True)

_NEW_MOUNTS, _NEW_CGROUP, _NEW_NAMES, _NEW_IPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
_NEW_USER, _NEW_PIDS, _NEW_NETWORK = 0x10000000, 0x20000000, 0x40000000
_NO_SUID, _NO_DEVICES, _NO_EXEC, _READ_ONLY = 2, 4, 8, 1
_REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 0x20, 0x1000, 0x4000, 0x40000
_AT_RECURSIVE, _DETACH = 0x8000, 2
FILES = 4096  # and folders that a program may make
_DEVICES = ("null", "zero", "full", "random", "urandom")

# By machine: the audit architecture, and the numbers of system calls on both (None: it isn't there).
_MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# Ways around the walls, and memory that no limit counts.
_CLOSED = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "unshare": (272, 97),
    "setns": (308, 268), "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "memfd_create": (319, 279),
    "shmget": (29, 194), "msgget": (68, 186), "semget": (64, 190), "setuid": (105, 146), "setreuid": (113, 145),
    "setresuid": (117, 147), "io_uring_setup": (425, 425), "pidfd_getfd": (438, 438), "memfd_secret": (447, 447),
}  # fmt: skip
# What reaches the processes and files of the same user, though Landlock hides them: signals, priorities, modes.
_SHARED = {
    "kill": (62, 129), "tkill": (200, 130), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424), "setpriority": (141, 140), "ioprio_set": (251, 30),
    "sched_setscheduler": (144, 119), "sched_setparam": (142, 118), "sched_setattr": (314, 274),
    "sched_setaffinity": (203, 122), "migrate_pages": (256, 238), "move_pages": (279, 239),
    "process_madvise": (440, 440), "process_mrelease": (448, 448), "chmod": (90, None), "fchmod": (91, 52),
    "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, None), "fchown": (93, 55), "lchown": (94, None),
    "fchownat": (260, 54), "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "setxattrat": (463, 463),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16), "removexattrat": (466, 466),
    "file_setattr": (469, 469),
}  # fmt: skip
_SOCKET, _CLONE, _TGKILL, _PRLIMIT, _CLONE3 = (41, 198), (56, 220), (234, 131), (302, 261), 435


def _call(name: str, *arguments: object) -> int:
    """A function of the C library. Raises OSError."""
    wide = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = int(getattr(_LIBC, name)(*wide))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def machine() -> str:
    """The processor's architecture."""
    return os.uname().machine


def die_with_parent(signal: int) -> None:
    """Get `signal` when the parent ends. A change of user forgets it."""
    _call("prctl", 1, signal, 0, 0, 0)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    _call("prctl", 36, 1, 0, 0, 0)


def separate() -> None:
    """Leave the machine's network, mounts, names and inter-process objects; children also its processes."""
    user, group = os.geteuid(), os.getegid()
    spaces = _NEW_MOUNTS | _NEW_CGROUP | _NEW_NAMES | _NEW_IPC | _NEW_PIDS | _NEW_NETWORK
    _call("unshare", spaces | (_NEW_USER if user else 0))
    if user:  # without being root it takes a user namespace to be allowed to
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    texts = [None if text is None else text.encode() for text in (source, target, kind, options)]
    _call("mount", texts[0], texts[1], texts[2], flags, texts[3])


def shrink_root(visible: list[tuple[str, str]]) -> None:
    """Put a root in place of the machine's that holds only the (path, where it really is) of `visible`, read-only,
    beside /proc, a few devices, /program.py for the caller to write, and an empty /tmp."""
    _mount(None, "/", None, _RECURSIVE | _PRIVATE)
    _mount("tmpfs", "/tmp", "tmpfs", _NO_SUID | _NO_DEVICES, "mode=755,size=16m")
    os.mkdir("/tmp/old")
    os.chdir("/tmp")
    _call("pivot_root", b".", b"old")
    os.chdir("/")
    for path, source in visible:
        _show(path, source)
        # struct mount_attr: set, clear, propagation, user namespace; only the kernel knows all mounts below
        attributes = struct.pack("=4Q", _READ_ONLY | _NO_SUID | _NO_DEVICES, 0, 0, 0)
        _call("syscall", 442, -100, path.encode(), _AT_RECURSIVE, attributes, len(attributes))
    for name in _DEVICES:
        _show(f"/dev/{name}", f"/dev/{name}")
    os.symlink("/proc/self/fd", "/dev/fd")
    os.symlink("/tmp", "/dev/shm")
    for folder in ("/proc", "/tmp"):
        os.mkdir(folder)
    # Read-only, because some of the kernel's settings are to be had for being root's, without any right of root's.
    _mount("proc", "/proc", "proc", _READ_ONLY | _NO_SUID | _NO_DEVICES | _NO_EXEC)
    _call("umount2", b"/old", _DETACH)
    os.rmdir("/old")
    _call("sethostname", b"sandbox", 7)


def _show(path: str, source: str) -> None:
    """Bind what the machine has at `source` to `path` of the new root."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.isdir(f"/old{source}"):
        os.makedirs(path, exist_ok=True)
    else:
        open(path, "w").close()
    _mount(f"/old{source}", path, None, _BIND | _RECURSIVE)


def freeze_root() -> None:
    """Nothing in the root itself can be written from now on."""
    _mount(None, "/", None, _REMOUNT | _BIND | _READ_ONLY | _NO_SUID | _NO_DEVICES)


def mount_tmp(size: int, owner: int) -> None:
    """Mount an empty /tmp of at most `size` bytes."""
    options = f"mode=700,size={size},nr_inodes={FILES},uid={owner}"
    _mount("tmpfs", "/tmp", "tmpfs", _NO_SUID | _NO_DEVICES, options)


def unmount_tmp() -> None:
    """Give the memory of /tmp back."""
    _call("umount2", b"/tmp", _DETACH)


def limit(*, cpu: int, memory: int, file: int, processes: int) -> None:
    """Limits of the process and its children; `cpu` in seconds, `memory` and `file` in bytes."""
    limits = {
        "CPU": cpu, "AS": memory, "FSIZE": file, "NPROC": processes, "NOFILE": 256, "CORE": 0, "MEMLOCK": 2**16,
        "MSGQUEUE": 0, "SIGPENDING": 64, "STACK": 2**24,
    }  # fmt: skip
    for name, value in limits.items():
        number = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(number)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(number, (value, value))


def fresh_user(serial: int) -> int:
    """A user id that nobody else has. Raises PermissionError for anyone but root.

    `serial`: differs between those that ask at one time.
    """
    if os.geteuid():
        raise PermissionError("only root can run a program as another user")
    with open("/proc/self/uid_map") as file:
        first, _, count = max((tuple(map(int, line.split())) for line in file), key=lambda extent: extent[2])
    return first + count // 2 + serial % (count // 4)


def counts_by_namespace() -> bool:
    """Whether a limit on processes counts those of the user namespace only, as Linux 5.14 and later do."""
    numbers = "".join(letter if letter.isdigit() else " " for letter in os.uname().release).split()
    return tuple(map(int, numbers[:2])) >= (5, 14)


def forget_privileges(user: tuple[int, int] | None) -> None:
    """Give up every capability, for good; as root also become `user` (real id, effective id)."""
    for capability in range(64):
        try:
            _call("prctl", 24, capability, 0, 0, 0)
        except OSError:  # past the kernel's last one, or not allowed to: then there is none to lose
            break
    if user is not None:
        real, effective = user
        os.setgroups([])
        os.setresgid(real, real, real)
        os.setresuid(real, effective, effective)
    _call("prctl", 47, 4, 0, 0, 0)  # the ambient ones
    _call("capset", struct.pack("=Ii", 0x20080522, 0), bytes(24))
    _call("prctl", 38, 1, 0, 0, 0)  # no program that it starts gives it new ones


def only_files(readable: list[str], writable: str) -> None:
    """Landlock: files outside of these can't be opened, made, renamed or removed, and signals stay inside. Names, sizes
    and modes can still be asked for, and times and modes of own files changed."""
    version = _call("syscall", 444, None, 0, 1)
    if version < 3:
        raise OSError(errno.ENOSYS, f"version {version} of Landlock lets files be emptied: it takes Linux 6.2")
    everything = (1 << (15 if version < 5 else 16)) - 1
    on_files = everything & 0b1100000000000111
    rules = struct.pack("=3Q", everything, 3 if version >= 4 else 0, 3 if version >= 6 else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = _call("syscall", 444, rules, size, 0)
    read = 0b1101  # execute, read a file, read a folder
    devices = [(f"/dev/{name}", 0b110) for name in _DEVICES]
    for path, rights in [*((path, read) for path in readable), *devices, (writable, everything)]:
        try:
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        allowed = everything & rights & (-1 if os.path.isdir(path) else on_files)
        _call("syscall", 445, ruleset, 1, struct.pack("=Qi", allowed, place), 0)
        os.close(place)
    _call("syscall", 446, ruleset, 0)
    os.close(ruleset)


def filter_calls(*, local_sockets: bool, shared: bool) -> None:
    """seccomp: no network, no new namespaces, no look into other processes.

    Args:
        local_sockets: whether sockets between own processes may be made.
        shared: others have the same user, so signals go to itself only, and no file's mode is changed.
    """
    place = list(_MACHINES).index(machine())
    allow, deny, absent = 0x7FFF0000, 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS
    load, equal, at_least, any_bit, leave = 0x20, 0x15, 0x35, 0x45, 0x06
    # (code, skip if true, skip if false, value); a call's number stands at 0, the architecture at 4, arguments at 16
    steps = [(load, 0, 0, 4), (equal, 1, 0, _MACHINES[machine()]), (leave, 0, 0, 0), (load, 0, 0, 0)]
    steps += [(at_least, 0, 1, 0x40000000), (leave, 0, 0, deny)]  # x86's other numbering
    denied = [numbers[place] for numbers in ({**_CLOSED, **_SHARED} if shared else _CLOSED).values()]
    for number in filter(None, denied):
        steps += [(equal, 0, 1, number), (leave, 0, 0, deny)]
    steps += [(equal, 0, 1, _CLONE3), (leave, 0, 0, absent)]  # its flags can't be seen; callers then take clone
    spaces = _NEW_MOUNTS | _NEW_CGROUP | _NEW_NAMES | _NEW_IPC | _NEW_USER | _NEW_PIDS | _NEW_NETWORK
    steps += [(equal, 0, 3, _CLONE[place]), (load, 0, 0, 16), (any_bit, 0, 1, spaces), (leave, 0, 0, deny)]
    steps += [(load, 0, 0, 0), (equal, 0, 3, _SOCKET[place]), (load, 0, 0, 16)]
    steps += [(equal, 1 if local_sockets else 0, 0, 1), (leave, 0, 0, deny), (load, 0, 0, 0)]
    for number, mine in [(_PRLIMIT[place], 0), *([(_TGKILL[place], os.getpid())] if shared else [])]:  # only on itself
        steps += [(equal, 0, 3, number), (load, 0, 0, 16), (equal, 1, 0, mine), (leave, 0, 0, deny), (load, 0, 0, 0)]
    steps += [(leave, 0, 0, allow)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    filters = struct.pack("@HP", len(steps), ctypes.addressof(program))
    _call("prctl", 22, 2, filters, 0, 0)
