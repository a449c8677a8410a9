"""To stay with a job until it ends, and to tell what happens in it: --wait and --follow of `submit` and `retry`, the
timeline of `accsd job`. NOTIFY is for services and the builder, so this asks: often while something happens, seldom
while nothing does."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any, Final, TypedDict
from uuid import UUID

import click

from accsd.cli import times
from accsd.cli.output import Shown, say, say_json, shown, styled
from accsd.db.pool import Database
from accsd.db.views import events as event_views
from accsd.db.views import jobs as job_views
from accsd.db.views.events import EventRow
from accsd.errors import AccsdError
from accsd.explain.events import StateWord, is_for_people, what_happened
from accsd.explain.words import duration, short
from accsd.model.outcome import Blame, ErrorCode, meaning_of
from accsd.model.state import JobStatus

_SHORTEST_SEC: Final = 0.3
_LONGEST_SEC: Final = 2.0
# An event may become visible after later ones: its time is when its transaction began.
_OVERLAP: Final = timedelta(seconds=15)
_BATCH: Final = 1000
_INTERRUPTED: Final = 130


class StayOptions(TypedDict):
    """Whether to stay with a job, and for how long: the values of stay_options."""

    wait: bool
    follow: bool
    timeout: timedelta | None


_STAY_OPTIONS: Final = (
    click.option("--wait", is_flag=True, help="Stay until it has ended; exit code 1 unless it is done."),
    click.option("--follow", is_flag=True, help="The same, telling what happens."),
    click.option(
        "--timeout", type=times.LENGTH, metavar="TIME", help="Stay no longer than this (exit code 5); the job goes on."
    ),
)


def stay_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_STAY_OPTIONS):
        command = option(command)
    return command


def stays(stay: StayOptions) -> bool:
    return stay["wait"] or stay["follow"]


async def stay_with(
    db: Database, job_id: UUID, stay: StayOptions, output: str, *, since: datetime | None = None
) -> job_views.JobRow:
    """Returns the job when it has ended; with --follow each event, from `since` on, is told. Exit code 5 after the
    timeout."""
    patience = stay["timeout"]
    try:
        async with asyncio.timeout(None if patience is None else patience.total_seconds()):
            if stay["follow"]:
                tell = _tell_json if output in ("json", "jsonl") else tell_line
                async for event in events(db, job_id, since):
                    tell(event)
            else:
                await _ended(db, job_id)
    except TimeoutError as error:
        waited = duration(patience or timedelta())
        raise AccsdError(
            f"job {short(job_id)} has not ended within {waited}; it goes on", hint=f"try `accsd job {short(job_id)}`"
        ) from error
    return await job_views.job(db, job_id)


@contextmanager
def interruptible() -> Generator[None]:
    """Ctrl-C ends the waiting, not the work."""
    try:
        yield
    except KeyboardInterrupt:
        say("\nno longer waiting: what was submitted goes on\n  → accsd jobs", err=True)
        raise SystemExit(_INTERRUPTED) from None


def end_like(job: job_views.JobRow, output: str) -> None:
    """Says how the job ended, and ends the command with the exit code that belongs to it."""
    _say_end(job, output)
    if job.status != JobStatus.DONE:
        raise SystemExit(1)


def _say_end(job: job_views.JobRow, output: str) -> None:
    if output in ("json", "jsonl"):
        say_json(asdict(job))
        return
    took = "" if job.took is None else f" after {duration(job.took)}"
    error = f": {job.error_code} {job.error_message or ''}".rstrip() if job.error_code else ""
    ended = "ended in" if job.status == JobStatus.ERROR else "is"
    say(f"job {short(job.id)} {ended} ", styled(job.status), f"{took}{error}", err=True)
    if job.status != JobStatus.DONE:
        say(f"  → accsd job {short(job.id)}\n  → {once_more(job)}", err=True)


def once_more(job: job_views.JobRow) -> str:
    """A job keeps the workflow that it was submitted under, so a retry can't help where that was wrong. (A file that it
    lacked is the same one when it is back.)"""
    if meaning_of(job.error_code).fault is Blame.WORKFLOW and job.error_code != ErrorCode.FILE_MISSING:
        return f"correct the workflow, apply it, then accsd submit {job.workflow}"
    return f"accsd retry {short(job.id)}"


async def events(db: Database, job_id: UUID, since: datetime | None = None) -> AsyncGenerator[EventRow]:
    """Yields what has happened in a job (or since a moment), then what happens, until it has ended and everything was
    told."""
    since = since or (await job_views.job(db, job_id)).created_at
    seen: dict[int, datetime] = {}
    pause = _SHORTEST_SEC
    while True:
        # The status first: what was written with the end is then among the events.
        is_over = _is_over(await job_views.job_status(db, job_id))
        found = await event_views.events_from(db, job_id, since, list(seen), _BATCH)
        for event in found:
            yield event
        if found:
            since = max(since, found[-1].ts - _OVERLAP)
            seen = {number: ts for number, ts in seen.items() if ts >= since} | {event.id: event.ts for event in found}
        if len(found) == _BATCH:
            continue
        if is_over:
            return
        pause = _SHORTEST_SEC if found else min(1.5 * pause, _LONGEST_SEC)
        await asyncio.sleep(pause)


async def _ended(db: Database, job_id: UUID) -> None:
    """Returns when the job has ended."""
    pause = _SHORTEST_SEC
    while not _is_over(await job_views.job_status(db, job_id)):
        await asyncio.sleep(pause)
        pause = min(1.2 * pause, _LONGEST_SEC)


def tell_line(event: EventRow) -> None:
    if is_for_people(event):
        say(line(event))


def line(event: EventRow) -> Shown:
    """One event for eyes: when, which step, what."""
    whose = event.task_key or "job"
    what = (styled(piece) if isinstance(piece, StateWord) else piece for piece in what_happened(event))
    return shown(f"{f'+{duration(event.since)}':>9}  {whose:<16}  ", *what)


def _tell_json(event: EventRow) -> None:
    say_json(asdict(event))


def _is_over(status: str | None) -> bool:
    """A job that retention has removed is over, too."""
    return status is None or JobStatus(status).is_terminal
