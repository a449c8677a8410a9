"""`accsd logs`: what tasks have written. Of an attempt that has ended it is in the object store, whole; what runs is
shown by its events, which come within a fraction of a second, and from the store where it writes more than events hold.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import click
import orjson

from accsd.cli import completion
from accsd.cli.archive import archived_of
from accsd.cli.objects import elsewhere, objects, require_bucket
from accsd.cli.output import log_line, say, to_json
from accsd.cli.session import settings_of, with_database
from accsd.db.pool import Database
from accsd.db.views import jobs as job_views
from accsd.db.views.artifacts import StoredArtifact, artifacts_of
from accsd.db.views.events import AttemptLog, LogEvent, begun_attempts, log_events
from accsd.db.views.jobs import is_open
from accsd.errors import AccsdError, NotFound
from accsd.explain.archive import ArchivedLines
from accsd.explain.identifiers import job_named
from accsd.explain.words import short
from accsd.model.state import EventType
from accsd.settings import Settings
from accsd.storage import ObjectStore
from accsd.values.validation import did_you_mean
from accsd.work.execution import is_rest_in_log

_POLL_SEC: Final = 0.5
# Two writers may commit in another order than that of their ids: so much is read again, and what was shown is left out.
_OVERLAP: Final = timedelta(seconds=5)

_GIVEN_UP: Final = 1 << 30
_AT_ONCE: Final = 200  # attempts whose events are asked for together

Record = Mapping[str, Any]
Who = tuple[UUID, int]  # an attempt


@click.command()
@click.argument("job", shell_complete=completion.jobs)
@click.argument("named", required=False, metavar="[STEP]", shell_complete=completion.steps)
@click.option("--step", "--task", "step", shell_complete=completion.steps, help="The same as STEP.")
@click.option("--attempt", type=click.IntRange(min=1), help="An earlier attempt; the last one unless named.")
@click.option("-f", "--follow", is_flag=True, help="Go on until the job (or the step) has ended.")
@click.option("-t", "--timestamps", is_flag=True, help="Begin each line with its time.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "jsonl"]),
    default="text",
    show_default=True,
    help="text for eyes; jsonl for programs: the records as they were kept.",
)
@click.pass_context
def logs(
    ctx: click.Context,
    job: str,
    named: str | None,
    step: str | None,
    attempt: int | None,
    follow: bool,
    timestamps: bool,
    output: str,
) -> None:
    """Show what the tasks of a job have written, step by step; with -f also what they write from now on.

    STEP is one step, with all its items where it has for_each, or one item of it.

    \b
    accsd logs 3f2a91bc
    accsd logs -f 3f2a91bc render
    accsd logs 3f2a91bc 'encode[3]'
    accsd logs 3f2a91bc render --attempt 1 -o jsonl
    """
    if named is not None and step not in (None, named):
        raise click.UsageError("STEP and --step name two steps: give one of them")
    step = named or step
    settings = settings_of(ctx)
    out = sys.stdout  # click.echo flushes each line, which took most of the time of a long log

    async def work(db: Database) -> int:
        job_id = await job_named(db, job)
        await _require_step(db, job_id, step)
        await _require_attempt(db, job_id, step, attempt)
        async with AsyncExitStack() as resources:
            log = _JobLog(db, settings, job_id, step, attempt, resources, when_up_to_date=out.flush)
            async for record in log.follow() if follow else log.so_far():
                line = (
                    to_json(record)
                    if output == "jsonl"
                    else log_line(record, timestamps, prefix=record["task"] != step)
                )
                out.write(f"{line}\n")
            out.flush()
            for gap in await log.gaps():
                say(f"accsd: the log is not whole: {gap}", err=True)
            return log.lines.total()

    try:
        lines = with_database(ctx, work)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    if not lines:
        say(f"nothing was written; `accsd why {job}` says what it waits for", err=True)


async def _require_step(db: Database, job_id: UUID, step: str | None) -> None:
    if step is None:
        return
    steps = await job_views.task_ids_of(db, job_id)
    if step not in steps:
        raise NotFound(
            f'job {short(job_id)} has no step "{step}"{did_you_mean(step, steps)}', hint=f"`accsd job {short(job_id)}`"
        )


async def _require_attempt(db: Database, job_id: UUID, step: str | None, attempt: int | None) -> None:
    if attempt is None or await begun_attempts(db, job_id, step=step, attempt=attempt):
        return
    begun = await begun_attempts(db, job_id, step=step, attempt=None)
    there = ", ".join(f"{one.task_key} 1" + (f" to {one.attempt_id}" if one.attempt_id > 1 else "") for one in begun)
    said = f"job {short(job_id)} has no attempt {attempt}" + (f' of step "{step}"' if step else "")
    raise NotFound(f"{said}; there are: {there or 'none yet'}", hint=f"`accsd job {short(job_id)}`")


@dataclass(slots=True)
class _Tail:
    """The kept log of one attempt, read on from where its events ended."""

    skip: int
    segments_read: int = 0


@dataclass(slots=True)
class _JobLog:
    db: Database
    settings: Settings
    job_id: UUID
    step: str | None
    attempt: int | None
    resources: AsyncExitStack
    when_up_to_date: Callable[[], None]
    lines: Counter[Who] = field(default_factory=Counter[Who])
    _keys: dict[UUID, str] = field(default_factory=dict[UUID, str])
    _tails: dict[Who, _Tail] = field(default_factory=dict[Who, _Tail])
    _store: ObjectStore | None = None
    _archived: ArchivedLines = field(init=False)

    def __post_init__(self) -> None:
        self._archived = archived_of(self.db, self.settings, self.job_id)

    async def so_far(self) -> AsyncIterator[Record]:
        async for record in self._in_turn(await self._attempts()):
            yield record

    async def follow(self) -> AsyncIterator[Record]:
        """Yields the whole logs of attempts that have ended, then the events of those that run."""
        ended = [one for one in await self._attempts() if not one.is_live]
        async for record in self._in_turn(ended):
            yield record
        told = {(one.task_id, one.attempt_id) for one in ended}
        since: datetime | None = None
        seen: dict[int, datetime] = {}
        while True:
            # Asked first: what was written before the end is read after it.
            goes_on = await is_open(self.db, self.job_id, self.step)
            fresh = [event for event in await self._events(since) if event.id not in seen]
            for event in fresh:
                if (event.task_id, event.attempt_id) not in told:
                    for record in self._shown([event]):
                        yield record
            async for record in self._rest():
                yield record
            if not goes_on:
                return
            seen |= {event.id: event.ts for event in fresh}
            since = max(seen.values()) - _OVERLAP if seen else since
            seen = {number: ts for number, ts in seen.items() if since is None or ts >= since}
            self.when_up_to_date()
            await asyncio.sleep(_POLL_SEC)

    async def gaps(self) -> list[str]:
        """What is missing in the logs of these attempts, and why."""
        wanted = {_who(one) for one in await self._attempts()}
        told = await self._said(list(self._keys), kind=EventType.TRUNCATED)
        gaps = [event for event in told if (event.task_id, event.attempt_id) in wanted]
        return [f"{self._keys[event.task_id]}, attempt {event.attempt_id}: {event.message}" for event in gaps]

    async def _attempts(self) -> list[AttemptLog]:
        found = await begun_attempts(self.db, self.job_id, step=self.step, attempt=self.attempt)
        self._keys |= {one.task_id: one.task_key for one in found}
        return found

    async def _events(self, since: datetime | None) -> list[LogEvent]:
        """The events of the steps and attempts that were asked for; a step that has begun since is among them."""
        await self._attempts()
        events = await self._said(list(self._keys), since)
        return [event for event in events if self.attempt in (None, event.attempt_id)]

    async def _in_turn(self, attempts: Sequence[AttemptLog]) -> AsyncIterator[Record]:
        """Yields one attempt after the other. Their events are asked for in batches: a job may have tens of thousands
        of attempts."""
        kept = await self._segments()
        for start in range(0, len(attempts), _AT_ONCE):
            some = attempts[start : start + _AT_ONCE]
            bare = [one.task_id for one in some if not one.is_live and _who(one) not in kept]
            said = await self._said_by(bare)
            for one in some:
                if one.is_live:
                    records = self._of_events(one, await self._said_by([one.task_id]))
                else:
                    records = self._kept(one, kept.get(_who(one), ()), said)
                async for record in records:
                    yield record

    async def _of_events(self, one: AttemptLog, said: Mapping[Who, Sequence[LogEvent]]) -> AsyncIterator[Record]:
        for record in self._shown(said.get(_who(one), ())):
            yield record
        async for record in self._rest(_who(one)):
            yield record

    async def _said_by(self, tasks: Sequence[UUID]) -> Mapping[Who, Sequence[LogEvent]]:
        found: dict[Who, list[LogEvent]] = {}
        for event in await self._said(tasks) if tasks else ():
            found.setdefault((event.task_id, event.attempt_id), []).append(event)
        return found

    async def _said(
        self, tasks: Sequence[UUID], since: datetime | None = None, kind: EventType = EventType.LOG
    ) -> list[LogEvent]:
        async def asked(archived: Sequence[str]) -> list[LogEvent]:
            return await log_events(self.db, self.job_id, tasks=tasks, since=since, archived=archived, kind=kind)

        if since is not None:  # what comes from now on is in no archive
            return await asked(())
        return await self._archived.ask(asked, tasks)

    def _shown(self, events: Iterable[LogEvent]) -> Iterable[Record]:
        for event in events:
            fence = (event.task_id, event.attempt_id)
            if is_rest_in_log(event.message) and fence not in self._tails:
                self._tails[fence] = _Tail(skip=self.lines[fence])
                continue
            self.lines[fence] += 1
            yield {
                "ts": event.ts,
                "task": self._keys[event.task_id],
                "attempt": event.attempt_id,
                "level": event.level,
                "message": event.message or "",
            } | ({} if event.data is None else {"data": event.data})

    async def _kept(
        self, one: AttemptLog, segments: Sequence[StoredArtifact], said: Mapping[Who, Sequence[LogEvent]]
    ) -> AsyncIterator[Record]:
        """Yields an attempt's log from the store. If that can't be read, its first lines are still in the database."""
        try:
            for segment in segments:
                for record in await self._read(segment):
                    yield record
        except AccsdError as error:
            _complain(error)
        if not self.lines[_who(one)]:
            async for record in self._of_events(one, await self._said_by([one.task_id]) if segments else said):
                yield record

    async def _rest(self, only: Who | None = None) -> AsyncIterator[Record]:
        """Yields what attempts that write more than events hold have written since, as far as it is in the store."""
        tails = {who: tail for who, tail in self._tails.items() if only in (None, who)}
        kept = await self._segments() if tails else {}
        for who, tail in tails.items():
            try:
                for segment in kept.get(who, ())[tail.segments_read :]:
                    records = await self._read(segment, count=False)
                    tail.segments_read += 1
                    for record in records[tail.skip :]:
                        yield record
                    tail.skip = max(0, tail.skip - len(records))
            except AccsdError as error:
                _complain(error)
                tail.segments_read = _GIVEN_UP

    async def _segments(self) -> dict[Who, list[StoredArtifact]]:
        """The stored logs of all attempts, each in the order of its segments' numbers."""
        found: dict[Who, list[StoredArtifact]] = {}
        for one in await artifacts_of(self.db, self.job_id):
            if one.is_log_segment and one.task_id is not None:
                found.setdefault((one.task_id, one.attempt_id or 0), []).append(one)
        return {who: sorted(ours, key=lambda one: (len(one.name), one.name)) for who, ours in found.items()}

    async def _read(self, segment: StoredArtifact, *, count: bool = True) -> list[Record]:
        if self._store is None:
            self._store = await self.resources.enter_async_context(objects(self.settings))
        require_bucket(self._store, segment.bucket, segment.key)
        try:
            kept = await self._store.get_bytes(segment.key, checksum=segment.checksum)
        except NotFound as missing:
            raise elsewhere(self.settings, missing) from missing
        lines: list[Record] = [orjson.loads(line) for line in kept.splitlines()]
        if count and segment.task_id is not None:
            self.lines[segment.task_id, segment.attempt_id or 0] += len(lines)
        return [{"task": segment.task_key, "attempt": segment.attempt_id, **line} for line in lines]


def _who(one: AttemptLog) -> Who:
    return one.task_id, one.attempt_id


def _complain(error: AccsdError) -> None:
    """Says what is missing; the rest of the log is shown all the same."""
    say(f"accsd: the log is not whole: {error}", err=True)
    if error.hint:
        say(f"  → {error.hint}", err=True)
