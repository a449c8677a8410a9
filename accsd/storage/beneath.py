"""Opens files and folders beneath a folder without ever following a link, even one that is swapped in meanwhile.

The folder's content may be hostile: a task wrote it. Paths are tuples of names; every step is taken from an open
descriptor, so that nothing outside can be reached, whatever is renamed during the walk.
"""

import ctypes
import errno
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_OPENAT2 = 437  # the same number on every architecture
_RESOLVE_NO_SYMLINKS = 0x04
_RESOLVE_BENEATH = 0x08
_LIBC = ctypes.CDLL(None, use_errno=True)


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


class NotRegular(OSError):
    """The path is a folder, a link, a device, a pipe or a socket."""


@contextmanager
def opened(path: Path | str, flags: int = FOLDER, *, at: int | None = None) -> Generator[int]:
    descriptor = os.open(path, flags, dir_fd=at)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_regular(root: int, parts: tuple[str, ...]) -> int:
    """Opens a regular file beneath `root` for reading. OSError where there is none; NotRegular where it is something
    else.

    It is looked at before it is opened: merely opening a pipe blocks, and opening a device may do anything.
    """
    looked_at = _open_beneath(root, parts, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        kind = os.fstat(looked_at).st_mode
        if not stat.S_ISREG(kind):
            raise NotRegular(errno.EINVAL, f"is {_named(kind)}")
        return os.open(f"/proc/self/fd/{looked_at}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY)
    finally:
        os.close(looked_at)


@contextmanager
def folder(root: int, parts: tuple[str, ...], *, make_mode: int | None = None, durably: bool = False) -> Generator[int]:
    """Opens a folder beneath `root`; with `make_mode`, makes it where it is missing (`durably`: and syncs it)."""
    current = os.dup(root)
    try:
        for part in parts:
            if make_mode is not None:
                _make(current, part, make_mode, durably)
            step = os.open(part, FOLDER, dir_fd=current)
            os.close(current)
            current = step
        yield current
    finally:
        os.close(current)


def _make(parent: int, name: str, mode: int, durably: bool) -> None:
    with suppress(FileExistsError):
        os.mkdir(name, mode, dir_fd=parent)
        with opened(name, at=parent) as made:
            os.fchmod(made, mode)  # whatever the umask says
        if durably:
            os.fsync(parent)


def _open_beneath(root: int, parts: tuple[str, ...], flags: int) -> int:
    try:
        return _openat2(root, "/".join(parts), flags)
    except OSError as error:
        # An older kernel, or a filter of system calls that does not know this one.
        if error.errno not in (errno.ENOSYS, errno.EPERM):
            raise
    return open_stepwise(root, parts, flags)


def _openat2(root: int, path: str, flags: int) -> int:
    how = _OpenHow(flags, 0, _RESOLVE_BENEATH | _RESOLVE_NO_SYMLINKS)
    answer: int = _LIBC.syscall(_OPENAT2, root, os.fsencode(path), ctypes.byref(how), ctypes.sizeof(how))
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    return answer


def open_stepwise(root: int, parts: tuple[str, ...], flags: int) -> int:
    """Does the same as openat2, one step at a time."""
    with folder(root, parts[:-1]) as parent:
        return os.open(parts[-1], flags | os.O_NOFOLLOW, dir_fd=parent)


def _named(mode: int) -> str:
    kinds = {
        stat.S_IFDIR: "a folder",
        stat.S_IFLNK: "a link",
        stat.S_IFIFO: "a pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
    }
    return kinds.get(stat.S_IFMT(mode), "no regular file")
