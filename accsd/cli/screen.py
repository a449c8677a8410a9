"""Lines that are too many for a terminal: which of them are seen, which one is chosen, and the keys that move it."""

import asyncio
import os
import re
import sys
import termios
import tty
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final
from uuid import UUID

_PRESSED: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|\x1bO[A-Z]|.", re.DOTALL)
_NAMES: Final[Mapping[str, str]] = {
    "\x1b[A": "up",
    "\x1bOA": "up",
    "k": "up",
    "\x1b[B": "down",
    "\x1bOB": "down",
    "j": "down",
    "\x1b[5~": "page up",
    "b": "page up",
    "\x1b[6~": "page down",
    " ": "page down",
    "\x1b[H": "home",
    "\x1bOH": "home",
    "\x1b[1~": "home",
    "g": "home",
    "\x1b[F": "end",
    "\x1bOF": "end",
    "\x1b[4~": "end",
    "G": "end",
    "\r": "enter",
    "\n": "enter",
    "\x1b": "escape",
}


Task = tuple[UUID, str]  # a job and its step


@dataclass(frozen=True, slots=True)
class ScreenLine:
    """`task` is the task that the line is about."""

    text: str
    task: Task | None = None


class Scroller:
    """Where there are lines about tasks, the arrows choose one of them, and it stays chosen when the lines change;
    elsewhere they scroll. `at_end`: the last lines are seen, whatever is added, until somebody scrolls up."""

    def __init__(self, *, at_end: bool = False) -> None:
        self.chosen: Task | None = None
        self._lines: Sequence[ScreenLine] = ()
        self._first: int = 0
        self._stays_at_end = at_end

    def show(self, lines: Sequence[ScreenLine]) -> None:
        self._lines = lines
        if self.chosen not in self._tasks():
            self.chosen = None

    def press(self, key: str, height: int) -> None:
        self.window(height)
        first, is_at_end, self._stays_at_end = self._first, self._stays_at_end, False
        match key:
            case "up" | "down" if self._tasks():
                self._choose_next(-1 if key == "up" else 1, height)
            case "up" | "page up":
                self._scroll_to(first - (1 if key == "up" else height - 1), height)
            case "down" | "page down":
                self._scroll_to(first + (1 if key == "down" else height - 1), height)
            case "home":
                self._scroll_to(0, height)
            case "end":
                self._scroll_to(len(self._lines), height)
            case _:
                pass
        self._stays_at_end = is_at_end and self._bounded(height) >= len(self._lines) - height

    def window(self, height: int) -> list[tuple[ScreenLine, bool]]:
        """The visible lines, and whether each is about the chosen task."""
        if self._stays_at_end:
            self._first = len(self._lines)
        self._first = self._bounded(height)
        seen = self._lines[self._first : self._first + height]
        return [(line, line.task is not None and line.task == self.chosen) for line in seen]

    def _bounded(self, height: int) -> int:
        return max(0, min(self._first, len(self._lines) - height))

    def _tasks(self) -> list[Task]:
        return list(dict.fromkeys(line.task for line in self._lines if line.task is not None))

    def _choose_next(self, by: int, height: int) -> None:
        """Above the first task none is chosen, so that the beginning can be seen again."""
        tasks = self._tasks()
        if self.chosen is None:
            seen = [line.task for line, _ in self.window(height) if line.task is not None]
            self.chosen = (seen or tasks)[0] if by > 0 else None
        else:
            at = tasks.index(self.chosen) + by
            self.chosen = None if at < 0 else tasks[min(at, len(tasks) - 1)]
        if self.chosen is None:
            self._first = 0
            return
        its = [number for number, line in enumerate(self._lines) if line.task == self.chosen]
        self._first = max(min(self._first, its[0]), its[-1] - height + 1)

    def _scroll_to(self, first: int, height: int) -> None:
        """A task that has left the window is not chosen any more."""
        self._first = first
        if not any(is_chosen for _, is_chosen in self.window(height)):
            self.chosen = None


@contextmanager
def keys() -> Generator[asyncio.Queue[str]]:
    """Yields a queue of the keys that are pressed, by name, without an echo. Afterwards the terminal is as it was."""
    pressed: asyncio.Queue[str] = asyncio.Queue()
    if not sys.stdin.isatty():
        yield pressed
        return
    loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()

    def read() -> None:
        for key in _PRESSED.findall(os.read(descriptor, 1024).decode(errors="replace")):
            pressed.put_nowait(_NAMES.get(str(key), str(key)))

    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, read)
    try:
        yield pressed
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
