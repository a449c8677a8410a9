"""`accsd job`: one job. How it stands, its steps as a graph, its attempts, and what happened."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from uuid import UUID

import click

from accsd.cli import completion
from accsd.cli.archive import archived_of
from accsd.cli.bars import SPENT, bar, legend
from accsd.cli.graph import GraphLine, aligned, beneath, draw
from accsd.cli.output import output_option, say, say_json, show_fitting, shown, since, styled, to_json
from accsd.cli.session import settings_of, with_database
from accsd.cli.timeline import once_more, tell_line
from accsd.db.pool import Database
from accsd.db.views import events as event_views
from accsd.db.views import jobs as job_views
from accsd.db.views.events import AttemptRow, EventRow
from accsd.db.views.jobs import JobRow, TaskRow
from accsd.explain.bar import Explanation, explain_job
from accsd.explain.eta import eta_words
from accsd.explain.identifiers import job_named
from accsd.explain.jobs import FoldedStep, failure, folded, job_document, task_note
from accsd.explain.words import cut, duration, short
from accsd.model import JobStatus
from accsd.model.state import EventType
from accsd.settings import Settings

_MARKS: Final = {
    "queued": "○",
    "starting": "◐",
    "running": "◐",
    "done": "●",
    "error": "✗",
    "skipped": "–",
    "cancelled": "⊘",
}
_EVENTS_SHOWN: Final = 50
_EVENTS_GIVEN: Final = 10_000
_ATTEMPTS_SHOWN: Final = 30
_ITEMS_SHOWN: Final = 10
_ATTEMPTS_GIVEN: Final = 100_000
_LONGEST_NOTE: Final = 70
_BAR: Final = 60  # blocks
_WORTH_A_BAR: Final = timedelta(seconds=1)
_LONGEST_NAME: Final = 30
_WORTH_A_WORD: Final = timedelta(milliseconds=100)


@dataclass(frozen=True, slots=True)
class _Everything:
    job: JobRow
    tasks: list[TaskRow]
    attempts: list[AttemptRow]
    events: list[EventRow]
    said: Mapping[str, int]  # events by type, those that are not shown too
    explanation: Explanation


@click.command()
@click.argument("job_id", metavar="JOB", shell_complete=completion.jobs)
@click.option(
    "--events",
    "count",
    type=click.IntRange(min=0),
    help=f"How many of the last events, not counting log lines and progress. [default: {_EVENTS_SHOWN}; all in JSON]",
)
@click.option("--items", "every_item", is_flag=True, help="Each item of a step with for_each, not only what failed.")
@output_option()
@click.pass_context
def job(ctx: click.Context, job_id: str, count: int | None, every_item: bool, output: str) -> None:
    """Show one job: how it stands, its steps, attempts and timeline. JOB may be the beginning or the end of an id.

    TOOK counts from the claim: it is the time of the node, with what it fetches and starts before the task itself runs.
    What a task has written is shown by `accsd logs`.

    TIME shows where the job's time went, along the chain of steps that decided its end.

    \b
    Example: accsd job 3f9a21c4 --events 100
    """
    for_eyes = output == "table"

    async def work(db: Database) -> _Everything:
        found = await job_named(db, job_id)
        return await _read(db, settings_of(ctx), found, count, for_eyes=for_eyes)

    everything = with_database(ctx, work)
    if for_eyes:
        _show(everything, every_item=every_item)
    elif output == "name":
        say(str(everything.job.id))
    else:
        document = job_document(everything.job, everything.tasks, everything.attempts, everything.events)
        say_json(document | {"explain": everything.explanation.document()})


async def _read(db: Database, settings: Settings, job_id: UUID, count: int | None, *, for_eyes: bool) -> _Everything:
    events = (_EVENTS_SHOWN if for_eyes else _EVENTS_GIVEN) if count is None else count
    attempts = _ATTEMPTS_SHOWN if for_eyes else _ATTEMPTS_GIVEN

    async def told(archived: Sequence[str]) -> tuple[list[AttemptRow], list[EventRow], dict[str, int], Explanation]:
        return (
            await event_views.attempts_of(db, job_id, attempts, archived),
            await event_views.newest_events(db, job_id, events, archived, chatter=not for_eyes),
            await event_views.count_events(db, job_id, archived) if for_eyes else {},
            await explain_job(db, job_id, archived),
        )

    history = await archived_of(db, settings, job_id).ask(told)
    return _Everything(await job_views.job(db, job_id), await job_views.tasks_of(db, job_id), *history)


def _show(everything: _Everything, *, every_item: bool) -> None:
    _show_header(everything.job)
    _show_time(everything.explanation)
    if everything.tasks:
        say()
        _show_steps(folded(everything.tasks), every_item=every_item)
    _show_failing(everything.tasks)
    multiplied = {task.task_key for task in everything.tasks if task.items is not None}
    attempts = [attempt for attempt in everything.attempts if attempt.task_key not in multiplied]
    if _tell_more_than_the_steps(attempts):
        say("\nattempts")
        _show_attempts(attempts, everything.job)
    if everything.events:
        say("\ntimeline")
        for event in everything.events:
            tell_line(event)
        _tell_of_the_rest(everything)
    _show_next(everything.job)


def _tell_of_the_rest(everything: _Everything) -> None:
    """Log lines and progress are only counted: they would push what happened off the screen."""
    name, said = short(everything.job.id), everything.said
    if lines := said.get(EventType.LOG):
        say(f"(and {lines} log lines: accsd logs {name})")
    if reports := said.get(EventType.PROGRESS):
        say(f"(and {reports} reports of progress: accsd job {name} -o json)")


def _show_header(job: JobRow) -> None:
    error = f"{job.error_code}: {job.error_message or ''}".rstrip(": ") if job.error_code else None
    pairs = {
        "job": str(job.id),
        "workflow": f"{job.workflow} version {job.version}",
        "status": shown(
            styled(job.status), f", {job.progress:.0%}", f" (run {job.generation + 1})" if job.generation else ""
        ),
        "submitted": (since(job.created_at) if job.age is None else f"{duration(job.age)} ago")
        + (f" by {job.created_by}" if job.created_by else ""),
        "scheduled": since(job.scheduled_at) if job.scheduled_at and job.status == JobStatus.QUEUED else None,
        "took": duration(job.took) if job.took is not None else None,
        "priority": str(job.priority) if job.priority else None,
        "key": job.idempotency_key,
        "trace": job.trace_id,
        "rerun of": str(job.trigger["rerun_of"]) if job.trigger and "rerun_of" in job.trigger else None,
        "cache": "ignored" if job.no_cache else None,
        "options": to_json(job.options) if job.options else None,
        "error": error,
    }
    for name, value in pairs.items():
        if value is not None:
            say(f"{name:<10} ", value)


def _show_time(explained: Explanation) -> None:
    """Where the time went, and when it will probably end."""
    lengths = [(piece.kind.value, piece.length.total_seconds()) for piece in explained.bar]
    whole = timedelta(seconds=sum(length for _, length in lengths))
    if whole >= _WORTH_A_BAR:
        say(f"{'time':<10} ", bar(lengths, SPENT, _BAR), f" {duration(whole)}")
        say(" " * 11, legend(_meanings(explained), SPENT))
    if explained.eta is not None and (words := eta_words(explained.eta, explained.now)):
        say(f"{'expected':<10} {words}")


def _meanings(explained: Explanation) -> Iterator[tuple[str, str]]:
    """What each block stands for, in the order of the bar: how long in all, and on whom, if that was one."""
    for kind in dict.fromkeys(piece.kind for piece in explained.bar):
        mine = [piece for piece in explained.bar if piece.kind is kind]
        length = sum((piece.length for piece in mine), timedelta(0))
        names = {piece.subject.name for piece in mine if piece.subject is not None}
        if length >= _WORTH_A_WORD:
            on = f" ({cut(names.pop(), _LONGEST_NAME)})" if len(names) == 1 else ""
            yield kind.value, f"{kind.replace('_', ' ')} {duration(length)}{on}"


def _show_steps(steps: Sequence[FoldedStep], *, every_item: bool) -> None:
    """A step that became many tasks is one line, with those of them below it that failed."""
    titles = {step.task.task_key: step.title for step in steps}
    by_title = {step.title: step for step in steps}
    below = {titles[key] for step in steps for key in step.task.depends_on}
    drawn = draw(
        [(step.title, [titles[key] for key in step.task.depends_on]) for step in steps],
        lambda title: _MARKS[by_title[title].status],
    )
    lines: list[GraphLine] = []
    cells: dict[str, list[str]] = {}
    for line in drawn:
        lines.append(line)
        if line.key is None:
            continue
        step = by_title[line.key]
        cells[line.key] = _cells_of_step(step)
        shown_items = step.items if every_item else step.failures[:_ITEMS_SHOWN]
        cells |= {task.task_key: _cells(task) for task in shown_items}
        lines += [beneath(line, task.task_key, goes_on=line.key in below) for task in shown_items]
    for line in aligned(lines, cells, ("step", "status", "service", "node", "attempt", "took", "note"), styled):
        say(line)
    if not every_item and any(len(step.failures) > _ITEMS_SHOWN for step in steps):
        say(f"(the first {_ITEMS_SHOWN} items that failed; --items shows all)")


def _show_failing(tasks: Sequence[TaskRow]) -> None:
    for task in tasks:
        if task.fails_everywhere and task.status not in ("done", "skipped", "cancelled"):
            say(f'\nstep "{task.task_key}" fails everywhere: {task.fails_everywhere}')


def _cells_of_step(step: FoldedStep) -> list[str]:
    if not step.items:
        return [*_cells(step.task)[:-1], cut(step.note, _LONGEST_NOTE)]
    nodes = sorted({task.node for task in step.items if task.node})
    where = nodes[0] if len(nodes) == 1 else f"{len(nodes)} nodes" if nodes else ""
    return [step.status, step.task.service, where, "", "", step.note]


def _cells(task: TaskRow) -> list[str]:
    has_run = task.attempt_id > 0 and task.cached is None
    tries = f"{task.attempt_id}" if has_run else ""
    took = duration(task.took) if task.took is not None and has_run else ""
    return [task.status, task.service, task.node or "", tries, took, cut(task_note(task), _LONGEST_NOTE)]


def _tell_more_than_the_steps(attempts: Sequence[AttemptRow]) -> bool:
    return any(attempt.attempt_id > 1 or attempt.outcome not in (None, "done") for attempt in attempts)


def _show_attempts(attempts: Sequence[AttemptRow], job: JobRow) -> None:
    rows = [
        {
            "step": attempt.task_key,
            "attempt": attempt.attempt_id,
            "node": attempt.node,
            "began": f"+{duration(attempt.claimed_at - job.created_at)}",
            "took": attempt.took,
            "outcome": attempt.outcome or "running",
            "error": failure(attempt.error_code, attempt.message),
        }
        for attempt in attempts
    ]
    show_fitting(rows, {name: name for name in ("step", "attempt", "node", "began", "took", "outcome", "error")})
    if len(attempts) == _ATTEMPTS_SHOWN:
        say(f"(the last {_ATTEMPTS_SHOWN}; -o json has all)")


def _show_next(job: JobRow) -> None:
    """Says the commands that fit a job in this state."""
    match JobStatus(job.status):
        case JobStatus.ERROR | JobStatus.CANCELLED:
            say(f"\n  → {once_more(job)}", err=True)
        case JobStatus.RUNNING:
            say(f"\n  → accsd why {short(job.id)}, accsd logs -f {short(job.id)}", err=True)
        case _:
            pass
