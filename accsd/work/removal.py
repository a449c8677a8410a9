"""Removing a folder in which a task did what it liked: read-only folders, links to elsewhere, a depth without end.

No link is followed, and nothing is entered that another file system is mounted on. Folders are moved to the top before
they are emptied, so that a tree of any depth takes two descriptors; the move also fails for whatever is a mount.
"""

import os
import secrets
from contextlib import suppress
from pathlib import Path

from accsd.storage.beneath import opened

_LOOK = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def remove_tree(folder: Path) -> dict[str, str]:
    """What could not be removed, and why; empty if nothing is left. Calling it again goes on where it stopped."""
    try:
        with opened(folder.parent, _LIST) as parent:
            return _remove_from(parent, folder.name)
    except FileNotFoundError:
        return {}
    except OSError as error:
        return {folder.name: error.strerror or str(error)}


def _remove_from(parent: int, name: str) -> dict[str, str]:
    try:
        top = _enter(name, parent)
    except NotADirectoryError:  # a file, or a link: itself, not what it points to
        os.unlink(name, dir_fd=parent)
        return {}
    try:
        left = _empty(top)
    finally:
        os.close(top)
    if not left:
        os.rmdir(name, dir_fd=parent)
    return left


def _empty(top: int) -> dict[str, str]:
    left: dict[str, str] = {}
    while names := [name for name in os.listdir(top) if name not in left]:
        waiting = [(name, False) for name in names]
        while waiting:
            name, is_aside = waiting.pop()
            try:
                name = name if is_aside else _move_aside(top, name, top)
                waiting.extend((moved, True) for moved in _remove_entry(top, name))
            except OSError as error:
                left[name] = error.strerror or str(error)
    return left


def _remove_entry(top: int, name: str) -> list[str]:
    """A file goes. A folder's files go, and its folders are moved to the top: their new names are the answer."""
    try:
        folder = _enter(name, top)
    except NotADirectoryError:
        os.unlink(name, dir_fd=top)
        return []
    moved: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    moved.append(_move_aside(folder, entry.name, top))
                else:
                    os.unlink(entry.name, dir_fd=folder)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=top)
    return moved


def _move_aside(folder: int, name: str, top: int) -> str:
    aside = f".{secrets.token_hex(8)}.gone"
    try:
        os.rename(name, aside, src_dir_fd=folder, dst_dir_fd=top)
    except PermissionError:  # moving a folder writes into it
        os.close(_enter(name, folder))
        os.rename(name, aside, src_dir_fd=folder, dst_dir_fd=top)
    return aside


def _enter(name: str, parent: int) -> int:
    """Opens a folder, and makes it writable for its owner: the right to list and to delete is its own to deny."""
    with opened(name, _LOOK, at=parent) as looked_at:
        with suppress(PermissionError):
            os.chmod(f"/proc/self/fd/{looked_at}", 0o700)
        return os.open(f"/proc/self/fd/{looked_at}", _LIST)
