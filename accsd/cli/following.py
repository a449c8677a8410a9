"""Staying with a job until it ends. NOTIFY is for services and the builder, so this asks: often while something
happens, seldom while nothing does."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Final, cast
from uuid import UUID

from accsd.cli.identifiers import short
from accsd.cli.output import Shown, duration, say, say_json, shown, styled
from accsd.db.pool import Database
from accsd.db.views import events as event_views
from accsd.db.views import jobs as job_views
from accsd.db.views.events import EventRow
from accsd.errors import AccsdError
from accsd.model import JobStatus

_SHORTEST_SEC: Final = 0.3
_LONGEST_SEC: Final = 2.0
# An event may become visible after later ones: its time is when its transaction began.
_OVERLAP: Final = timedelta(seconds=15)
_BATCH: Final = 1000


async def events(db: Database, job_id: UUID, since: datetime | None = None) -> AsyncGenerator[EventRow]:
    """What has happened in a job, or since a moment, then what happens, until it has ended and all was told."""
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


async def ended(db: Database, job_id: UUID) -> None:
    """Returns when the job has ended."""
    pause = _SHORTEST_SEC
    while not _is_over(await job_views.job_status(db, job_id)):
        await asyncio.sleep(pause)
        pause = min(1.2 * pause, _LONGEST_SEC)


async def stay_with(
    db: Database,
    job_id: UUID,
    *,
    patience: timedelta | None,
    tell: Callable[[EventRow], None] | None,
    since: datetime | None = None,
) -> job_views.JobRow:
    """Waits for the end, telling each event if somebody wants to hear. When the patience is at its end: exit code 5."""
    try:
        async with asyncio.timeout(None if patience is None else patience.total_seconds()):
            if tell is None:
                await ended(db, job_id)
            else:
                async for event in events(db, job_id, since):
                    tell(event)
    except TimeoutError as error:
        waited = duration(patience or timedelta())
        raise AccsdError(
            f"job {short(job_id)} has not ended within {waited}; it goes on", hint=f"try `accsd job {short(job_id)}`"
        ) from error
    return await job_views.job(db, job_id)


def tell_line(event: EventRow) -> None:
    if is_for_eyes(event):
        say(sentence(event))


def is_for_eyes(event: EventRow) -> bool:
    """Not what is said for programs (-o json has it), nor each part of a log on its way to the store."""
    data = cast("dict[str, object]", event.data) if isinstance(event.data, dict) else {}
    return event.level != "debug" and not (event.type == "artifact" and data.get("kind") == "log")


def tell_json(event: EventRow) -> None:
    say_json(asdict(event))


def sentence(event: EventRow) -> Shown:
    """One event for eyes: when, whose, what."""
    whose = event.task_key or "job"
    return shown(f"{f'+{duration(event.since)}':>9}  {whose:<16}  ", what(event))


def what(event: EventRow) -> str:
    data = cast("dict[str, object]", event.data) if isinstance(event.data, dict) else {}
    said = (event.message or "").replace("\n", " ")
    match event.type:
        case "progress" if isinstance(done := data.get("progress"), int | float):
            return f"{done:4.0%}  {said}".rstrip()
        case "status" | "retry":
            return shown(_move(said, data), *(f" {detail}" for detail in _details(event, data)))
        case "log":
            return said if event.level in ("info", "debug") else f"{event.level}: {said}"
        case "artifact":
            return f"kept {said.rpartition('/')[2]}"
        case kind:
            return f"{kind}: {said}" if said else kind


def _move(said: str, data: dict[str, object]) -> Shown:
    """`running → error`, and what was said about it where that is something else."""
    if "to" not in data:
        return shown(said)
    plain = f"{data.get('from')} → {data['to']}"
    more = said.removeprefix(plain) if said.startswith(plain) else f": {said}" if said else ""
    return shown(f"{data.get('from')} → ", styled(str(data["to"])), more)


def _details(event: EventRow, data: dict[str, object]) -> list[str]:
    details = [f"on {data['node']}"] if "node" in data else []
    if data.get("to") == "starting" and (event.attempt_id or 0) > 1:
        details.append(f"(attempt {event.attempt_id})")
    if "error_code" in data:
        details.append(f"[{data['error_code']}]")
    return details


def _is_over(status: str | None) -> bool:
    """A job that is gone, by retention, is over too."""
    return status is None or JobStatus(status).is_terminal
