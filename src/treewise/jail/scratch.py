"""The folder that a program may write to: a file system of its own in memory, or a folder that is looked at."""

from __future__ import annotations

import os
from contextlib import suppress

from treewise.jail import kernel


def remove(folder: str) -> None:
    """Remove a folder with all that a program may have made in it: any depth, any modes."""
    for words in (["chmod", "-R", "u+rwx", folder], ["rm", "-rf", folder]):
        os.spawnvp(os.P_WAIT, words[0], words)


class Scratch:
    """A new, empty folder for the time of a `with`.

    Args:
        path: of the folder; /tmp where it is mounted.
        owner: the user that it belongs to.
        size: bytes that it may hold.
        mounted: whether it is a file system of its own, which can't hold more.
    """

    def __init__(self, path: str, owner: int, size: int, *, mounted: bool) -> None:
        self.path = path
        self._owner, self._size, self._mounted = owner, size, mounted

    def __enter__(self) -> None:
        if self._mounted:
            kernel.mount_tmp(self._size, self._owner)
        else:
            os.mkdir(self.path, 0o700)
            os.chown(self.path, self._owner, -1)

    def __exit__(self, *_: object) -> None:
        if self._mounted:
            kernel.unmount_tmp()
        else:
            remove(self.path)

    def is_too_full(self) -> bool:
        """Whether the files, or their number, are above what the program may have."""
        if self._mounted:
            return False
        held = files = 0
        folders = [self.path]
        while folders:
            try:
                for entry in os.scandir(folders.pop()):
                    with suppress(FileNotFoundError):
                        held += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    files += 1
            except FileNotFoundError:
                continue
            except OSError:  # closed to its owner, or deeper than a path can say: anything could be in there
                return True
            if held > self._size or files > kernel.FILES:
                return True
        return False
