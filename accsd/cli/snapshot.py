"""The fleet at a glance, as lines: what `accsd top` shows, on a terminal of any width or in a pipe."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from accsd.cli.output import cell, fitted, shown, styled
from accsd.cli.screen import ScreenLine, Task
from accsd.db.pool import Database
from accsd.db.views import fleet, health
from accsd.db.views.fleet import COUNTED, LatestFailure, LiveTask, NodeView, ServiceView, WorkflowLoad
from accsd.db.views.health import BrokenSchedule, BuilderView
from accsd.explain.fleet import node_because, service_state
from accsd.explain.health import no_builder, troubles
from accsd.explain.words import duration, one_line, short
from accsd.health import SchedulerHealth
from accsd.settings import Settings

_TASKS: Final = 50
_FAILURES: Final = 20
_BROKEN: Final = 5
_BAR: Final = 20
_LONGEST: Final = 500  # of a sentence
_WIDE: Final = 100  # columns, with which there is room for bars


@dataclass(frozen=True, slots=True)
class Snapshot:
    workflows: list[WorkflowLoad]
    services: list[ServiceView]
    nodes: list[NodeView]
    tasks: list[LiveTask]
    failures: list[LatestFailure]
    failed_today: int
    scheduler: SchedulerHealth
    builders: list[BuilderView]
    broken: list[BrokenSchedule]


async def look(db: Database) -> Snapshot:
    midnight = datetime.now().astimezone().replace(hour=0, minute=0, second=0, microsecond=0)
    return Snapshot(
        await fleet.in_motion(db),
        await fleet.services(db),
        [node for node in await fleet.nodes(db) if node.is_machine],
        await fleet.live_tasks(db, limit=_TASKS),
        await fleet.latest_failures(db, limit=_FAILURES),
        await fleet.failed_since(db, midnight),
        await health.scheduler_health(db),
        await health.builders(db),
        await health.broken_schedules(db, limit=_BROKEN),
    )


def heading(snapshot: Snapshot, settings: Settings, width: int | None) -> list[str]:
    queued, running = (sum(getattr(each, name) for each in snapshot.workflows) for name in ("queued", "running"))
    counts = f"{_counted(queued)} queued, {_counted(running)} running, {snapshot.failed_today} failed today"
    said = f"{datetime.now().astimezone():%H:%M:%S}  jobs: {counts}  {settings.database.address}"
    return textwrap.wrap(said, width) if width else [said]


def _counted(found: int) -> str:
    return f"{found}+" if found >= COUNTED else str(found)


def lines(snapshot: Snapshot, settings: Settings, width: int | None) -> Iterator[ScreenLine]:
    yield from _scheduler(snapshot, width)
    yield from _workflows(snapshot.workflows, width)
    yield from _services(snapshot.services, width)
    yield from _nodes(snapshot.nodes, settings.lease, width)
    yield from _tasks(snapshot.tasks, width)
    yield from _failures(snapshot.failures, width)


def _section(
    title: str, headings: Sequence[str], rows: Sequence[Sequence[Any]], width: int | None, tasks: Sequence[Task] = ()
) -> Iterator[ScreenLine]:
    """A table that fits, or a list where it does not. `tasks` has the task that each row is about."""
    yield ScreenLine(styled(title, bold=True))
    cells = [[cell(value) for value in row] for row in rows]
    for number, line in fitted(headings, cells, None if width is None else width - 2) if rows else ():
        yield ScreenLine(shown("  ", line), tasks[number] if tasks and number is not None else None)


def _scheduler(snapshot: Snapshot, width: int | None) -> Iterator[ScreenLine]:
    """The counts, and below them whatever is not as it should be."""
    counts = snapshot.scheduler
    counted = (
        f"{_counted(counts.pending)} pending, {_counted(counts.running)} running, {_counted(counts.failed)} failed, "
        f"{_counted(counts.stuck_running)} stuck"
    )
    yield ScreenLine(styled("scheduler", bold=True))
    for line in (
        counted,
        *no_builder(counts, snapshot.builders),
        *troubles(counts, snapshot.builders),
        *_broken(snapshot),
    ):
        for part in textwrap.wrap(one_line(line, _LONGEST), width - 2) if width else [line]:
            yield ScreenLine(shown("  ", part))


def _broken(snapshot: Snapshot) -> Iterator[str]:
    for each in snapshot.broken:
        yield f"schedule {each.name} is broken: {each.problem or 'no reason is known'}"
    if (more := snapshot.scheduler.broken - len(snapshot.broken)) > 0:
        yield f"and {more} more are broken: accsd schedules list --state broken"


def _workflows(workflows: Sequence[WorkflowLoad], width: int | None) -> Iterator[ScreenLine]:
    rows = [(each.workflow, each.queued, each.running, "paused" if each.is_paused else "") for each in workflows]
    if rows:
        yield from _section("jobs by workflow", ("workflow", "queued", "running", ""), rows, width)


def _services(services: Iterable[ServiceView], width: int | None) -> Iterator[ScreenLine]:
    headings = ("service", "claimable", "backoff", "held", "running", "")
    rows: list[Sequence[Any]] = []
    for each in services:
        held, running = each.held_by_key + each.paused, f"{each.live}/{each.slots}"
        rows.append((each.service, each.claimable, each.in_backoff, held, running, service_state(each)))
    yield from _section("services", headings, rows, width)


def _nodes(nodes: Iterable[NodeView], silent: timedelta, width: int | None) -> Iterator[ScreenLine]:
    rows: list[Sequence[str]] = []
    for node in nodes:
        used = "  ".join(f"{service} {node.live.get(service, 0)}/{slots}" for service, slots in node.slots.items())
        seen = "never" if node.unseen_for is None else f"{duration(node.unseen_for)} ago"
        rows.append((node.name, node.state(silent), seen, used, one_line(node_because(node, silent))))
    yield from _section("nodes", ("node", "state", "seen", "slots", "because"), rows, width)


def _tasks(tasks: Sequence[LiveTask], width: int | None) -> Iterator[ScreenLine]:
    has_bars = width is not None and width >= _WIDE
    headings = ("task", "service", "node", "done", "for", "lease", *([""] if has_bars else []))
    rows: list[Sequence[str]] = []
    for task in tasks:
        where = (f"{short(task.job_id)}/{task.task_key}", task.service, task.node)
        bar = [_bar(task.progress)] if has_bars else []
        rows.append((*where, f"{task.progress:.0%}", duration(task.running_for), _lease(task), *bar))
    title = "running" if len(tasks) < _TASKS else f"running, the longest {_TASKS}"
    yield from _section(title, headings, rows, width, [(task.job_id, task.task_key) for task in tasks])


def _lease(task: LiveTask) -> str:
    return duration(task.lease_left) if task.lease_left > timedelta(0) else "over"


def _bar(progress: float) -> str:
    done = round(_BAR * min(1.0, max(0.0, progress)))
    return "━" * done + "─" * (_BAR - done)


def _failures(failures: Sequence[LatestFailure], width: int | None) -> Iterator[ScreenLine]:
    """The task and its code are always seen; the message is cut."""
    rows: list[Sequence[str]] = []
    for each in failures:
        message = one_line(each.error_message or "")
        rows.append((f"{short(each.job_id)}/{each.task_key}", each.error_code or "", duration(each.age), message))
    if rows:
        title = "failed, unsettled (accsd dead list)"
        tasks = [(each.job_id, each.task_key) for each in failures]
        yield from _section(title, ("task", "code", "ago", "message"), rows, width, tasks)
