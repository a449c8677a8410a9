"""`accsd why`: a wait always has a reason. Every blocker, since when, and what to try."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import click

from accsd.cli import completing
from accsd.cli.identifiers import job_named, short, task_named
from accsd.cli.output import duration, output_option, say, show, styled
from accsd.cli.reasons import reason
from accsd.cli.session import settings_of, with_database
from accsd.db.pool import Database
from accsd.db.views import jobs as job_views
from accsd.db.why import Blocker, OpenTask, failed_tasks, open_tasks, step_of, why_each
from accsd.errors import NotFound

_SHOWN: Final = 20  # tasks of one job: what keeps these keeps the others


@dataclass(frozen=True, slots=True)
class _Explained:
    """A task, or a job as a whole (`step` is None), and all that is to be said about it."""

    job_id: UUID
    task_id: UUID | None
    step: str | None
    blockers: Sequence[Blocker]
    is_critical: bool = False


@click.command()
@click.argument("subject", metavar="JOB|TASK", shell_complete=completing.jobs_and_steps)
@output_option()
@click.pass_context
def why(ctx: click.Context, subject: str, output: str) -> None:
    """Say why a job or a task does not run: every blocker, since when, and what to try next.

    Of a job, the tasks that are next are explained; the first is the one on which the most depends. A task is named by
    its id, or as JOB/STEP.

    \b
    accsd why 3f2a91bc
    accsd why 3f2a91bc/render
    """
    silent = settings_of(ctx).lease
    explained = with_database(ctx, lambda db: _explain(db, subject, silent))
    if output == "table":
        for each in explained:
            _tell(each)
    else:
        show([row for each in explained for row in _rows(each)], {}, output, name="blocker")


async def _explain(db: Database, subject: str, silent: timedelta) -> list[_Explained]:
    if "/" in subject:
        return [await _task(db, await task_named(db, subject), silent)]
    try:
        job_id = await job_named(db, subject)
    except NotFound:
        return [await _task(db, await _task_or_nothing(db, subject), silent)]
    return await _job(db, job_id, silent)


async def _task_or_nothing(db: Database, subject: str) -> UUID:
    try:
        return await task_named(db, subject)
    except NotFound:
        raise NotFound(
            f'no job or task has an id like "{subject}"', hint="`accsd jobs` lists the newest jobs"
        ) from None


async def _task(db: Database, task_id: UUID, silent: timedelta) -> _Explained:
    job_id, key = await step_of(db, task_id)
    return _Explained(job_id, task_id, key, (await why_each(db, [task_id], silent=silent))[task_id])


async def _job(db: Database, job_id: UUID, silent: timedelta) -> list[_Explained]:
    """The job itself; then, while it runs, what is next in it, and after a failure, what failed."""
    itself = _Explained(job_id, None, None, (await why_each(db, [job_id], silent=silent))[job_id])
    match await job_views.job_status(db, job_id):
        case "running":
            waiting = await open_tasks(db, job_id)
            names = {task.id: task.task_key for task in _by_weight(waiting)[:_SHOWN]}
        case "error":
            names = dict(list((await failed_tasks(db, job_id)).items())[:_SHOWN])
        case _:
            return [itself]
    found = await why_each(db, list(names), silent=silent)
    told = [_Explained(job_id, task, names[task], found[task], number == 0) for number, task in enumerate(names)]
    return [itself, *told]


def _by_weight(tasks: Sequence[OpenTask]) -> list[OpenTask]:
    """Those that are next, the one with the longest chain of steps behind it first."""
    behind = _chains(tasks)
    return sorted((task for task in tasks if task.is_next), key=lambda task: -behind[task.task_key])


def _chains(tasks: Sequence[OpenTask]) -> dict[str, int]:
    """How many steps, one after the other, each one has behind it. Without recursion: a chain may be 100,000 long."""
    dependants: dict[str, list[str]] = {task.task_key: [] for task in tasks}
    for task in tasks:
        for key in task.depends_on:
            if key in dependants:
                dependants[key].append(task.task_key)
    behind: dict[str, int] = {}
    for root in dependants:
        todo = [root]
        while todo:
            key = todo[-1]
            unknown = [child for child in dependants[key] if child not in behind]
            if unknown:
                todo += unknown
                continue
            behind[todo.pop()] = max((behind[child] + 1 for child in dependants[key]), default=0)
    return behind


def _tell(each: _Explained) -> None:
    name = short(each.job_id) + (f"/{each.step}" if each.step else "")
    say(styled(f"{'job' if each.step is None else 'task'} {name}", bold=True))
    for found in each.blockers:
        why = reason(found, job=each.job_id, step=each.step)
        for_how_long = f"  [{duration(found.waited)}]" if found.waited is not None else ""
        say(f"  {why.text}{for_how_long}")
        if why.do:
            say(f"    → {why.do}")


def _rows(each: _Explained) -> list[Mapping[str, Any]]:
    rows: list[Mapping[str, Any]] = []
    for found in each.blockers:
        why = reason(found, job=each.job_id, step=each.step)
        rows.append(
            {
                "job_id": each.job_id,
                "task_id": each.task_id,
                "task_key": each.step,
                "is_critical": each.is_critical,
                "blocker": found.blocker,
                "since": found.since,
                "until": found.until,
                "text": why.text,
                "next": why.do,
                "detail": found.detail,
            }
        )
    return rows
