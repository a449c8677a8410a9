"""What the audience sees: a live table on a terminal, one line for each change elsewhere."""

import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

from accsd.demo.scenes import SceneLine, TaskSeen


class Screen(Protocol):
    def __enter__(self) -> "Screen": ...
    def __exit__(self, *exc: object) -> None: ...

    def say(self, text: str) -> None:
        """A sentence of the narrator's."""
        ...

    def keep(self, text: str) -> None:
        """A line that stays and is not broken: it has a link."""
        ...

    def show(self, tasks: Sequence[TaskSeen], asleep: Sequence[str], dead: Sequence[str]) -> None:
        """The state of things now."""
        ...


def open_screen(*, plain: bool = False) -> Screen:
    if plain or not sys.stdout.isatty():
        return PlainScreen()
    from accsd.demo.live import LiveScreen  # with rich, which only a terminal needs

    return LiveScreen()


class PlainScreen:
    """For pipes and logs: each change of a task is a line."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, str], tuple[str, str | None, int]] = {}

    def __enter__(self) -> "PlainScreen":
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def say(self, text: str) -> None:
        _print(f"── {text}")

    def keep(self, text: str) -> None:
        self.say(text)

    def show(self, tasks: Sequence[TaskSeen], asleep: Sequence[str], dead: Sequence[str]) -> None:
        for task in tasks:
            now = (task.status, task.node, task.attempt_id)
            if self._seen.get((task.job_number, task.key)) != now:
                self._seen[task.job_number, task.key] = now
                where = f" on {task.node}, attempt {task.attempt_id}" if task.node else ""
                _print(f"   job {task.job_number}  {task.key:<12}{task.status}{where}")


def shown_timeline(lines: Sequence[SceneLine]) -> list[str]:
    return [f"  {seconds(line.after):>6}  {line.task_key or '':<12}{line.source:<20}{line.message}" for line in lines]


def seconds(length: timedelta | None) -> str:
    return "" if length is None else f"{length.total_seconds():.1f}s"


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
