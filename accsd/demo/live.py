"""The live table (rich): a row for each task with its state, node, attempt, progress and time."""

from collections.abc import Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from accsd.demo.scenes import TaskSeen
from accsd.demo.screen import seconds

_STYLES = {"done": "green", "running": "cyan", "starting": "cyan", "queued": "dim", "error": "red"}
_SENTENCES = 6  # of the narrator's, kept on screen


class LiveScreen:
    def __init__(self) -> None:
        self._console: Console = Console()
        self._live: Live = Live(console=self._console, refresh_per_second=8, transient=False)
        self._said: list[str] = []
        self._tasks: Sequence[TaskSeen] = ()
        self._asleep: Sequence[str] = ()
        self._dead: Sequence[str] = ()

    def __enter__(self) -> "LiveScreen":
        self._live.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._live.__exit__(None, None, None)

    def say(self, text: str) -> None:
        self._said.append(text)
        self._draw()

    def keep(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, highlight=False, markup=False)

    def show(self, tasks: Sequence[TaskSeen], asleep: Sequence[str], dead: Sequence[str]) -> None:
        self._tasks, self._asleep, self._dead = tasks, asleep, dead
        self._draw()

    def _draw(self) -> None:
        narrator = Text("\n".join(f"● {sentence}" for sentence in self._said[-_SENTENCES:]), style="bold")
        self._live.update(Group(self._table(), narrator))

    def _table(self) -> Table:
        table = Table(expand=False, title=self._machines(), title_justify="left", title_style="")
        for heading, width in (("job", 4), ("step", 12), ("state", 9), ("node", 12), ("attempt", 8)):
            table.add_column(heading, min_width=width)
        table.add_column("progress", width=24)
        table.add_column("time", justify="right", min_width=6)
        for number, task in enumerate(self._tasks):
            if number and task.job_number != self._tasks[number - 1].job_number:
                table.add_section()
            table.add_row(*self._row(task))
        return table

    def _machines(self) -> str:
        asleep = [f"[blue]{name} is asleep[/]" for name in self._asleep]
        return "   ".join(asleep + [f"[red]{name} has lost power[/]" for name in self._dead])

    def _row(self, task: TaskSeen) -> list[Text | ProgressBar | str]:
        attempt = Text(str(task.attempt_id or ""), style="yellow" if task.attempt_id > 1 else "")
        return [
            str(task.job_number),
            task.key,
            Text(task.status, style=_STYLES.get(task.status, "")),
            task.node or "",
            attempt,
            ProgressBar(total=1.0, completed=task.progress, width=24),
            seconds(task.elapsed),
        ]
