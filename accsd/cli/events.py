"""`accsd events`: what was emitted and what each event caused; giving events to a schedule again."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict
from typing import Any, Final

import click

from accsd.cli.changes import tell
from accsd.cli.output import output_option, say, say_json, show, text, to_json
from accsd.cli.session import operator, with_database
from accsd.db import topics
from accsd.db.answers import Verdict
from accsd.db.pool import Database
from accsd.db.topics import Caused, ReplayAnswer, TopicEvent
from accsd.explain.changes import ChangeOutcome
from accsd.explain.words import short

_COLUMNS: Final = ("id", "age", "topic", "key", "payload", "caused")
_LONGEST_PAYLOAD: Final = 60
_POLL_SEC: Final = 1.0
_OVERLAP: Final = 1000  # ids: an event with a smaller id may be committed later


@click.group(invoke_without_command=True)
@click.option("--topic", metavar="PATTERN", help="Only this topic; its last segment may be * or **.")
@click.option("-f", "--follow", is_flag=True, help="Go on with those that come, until it is interrupted.")
@click.option("-n", "limit", type=click.IntRange(1, 10_000), default=20, show_default=True, help="How many.")
@output_option()
@click.pass_context
def events(ctx: click.Context, topic: str | None, follow: bool, limit: int, output: str) -> None:
    """List events, newest first, with what each one caused in the schedules that listen to it.

    \b
    Examples:
      accsd events
      accsd events --topic 'shop.**' --follow
      accsd events replay 4711 --to nightly
    """
    if ctx.invoked_subcommand is not None:
        return
    if follow:
        _follow(ctx, topic, limit, output)
        return
    found = with_database(ctx, lambda db: topics.events(db, pattern=topic, limit=limit))
    rows = [_cells(row) if output == "table" else asdict(row) for row in found]
    show(rows, {name: name for name in _COLUMNS}, output, empty="there is no event")


def _follow(ctx: click.Context, topic: str | None, limit: int, output: str) -> None:
    async def work(db: Database) -> None:
        async for row in _coming(db, topic, limit):
            if output == "name":
                say(str(row.id))
            elif output == "table":
                say(_line(row))
            else:
                say_json(asdict(row))

    try:
        with_database(ctx, work)
    except KeyboardInterrupt:
        raise SystemExit(130) from None


async def _coming(db: Database, topic: str | None, limit: int) -> AsyncIterator[TopicEvent]:
    seen: set[int] = set()
    fresh = list(reversed(await topics.events(db, pattern=topic, limit=limit)))
    newest = max((row.id for row in fresh), default=0)
    oldest = min((row.id for row in fresh), default=0)
    while True:
        for row in fresh:
            yield row
        seen |= {row.id for row in fresh}
        newest = max(seen, default=newest)
        seen = {number for number in seen if number > newest - _OVERLAP}
        await asyncio.sleep(_POLL_SEC)
        after = max(newest - _OVERLAP, oldest - 1)
        found = await topics.events(db, pattern=topic, after=after, limit=2 * _OVERLAP)
        fresh = [row for row in found if row.id not in seen]


def _line(row: TopicEvent) -> str:
    return (
        f"{row.at.astimezone():%Y-%m-%d %H:%M:%S}  {row.id}  {row.topic}  {_payload(row)}  {_all_caused(row)}".rstrip()
    )


def _cells(row: TopicEvent) -> dict[str, Any]:
    return {
        "id": row.id,
        "age": text(row.at),
        "topic": row.topic,
        "key": row.key,
        "payload": _payload(row),
        "caused": _all_caused(row),
    }


def _payload(row: TopicEvent) -> str:
    written = to_json(row.payload)
    return written if len(written) <= _LONGEST_PAYLOAD else written[: _LONGEST_PAYLOAD - 1] + "…"


def _all_caused(row: TopicEvent) -> str:
    """A schedule whose filter left the event out has no row."""
    left_out = row.matched - len(row.caused)
    told = [_caused(each) for each in row.caused]
    return ", ".join(told + ([f"left out by {left_out} filter{'s' if left_out > 1 else ''}"] if left_out > 0 else []))


def _caused(each: Caused) -> str:
    what = each.outcome if each.reason is None else f"{each.outcome} ({each.reason})"
    return f"{each.schedule}: {what}" + ("" if each.job_id is None else f" job {short(each.job_id)}")


@events.command("replay")
@click.argument("ids", nargs=-1, type=int, metavar="ID…", required=True)
@click.option("--to", "schedule", metavar="SCHEDULE", required=True, help="The schedule that gets them.")
@click.option("--reason", help="Why, for the schedule's history.")
@output_option()
@click.pass_context
def replay_command(ctx: click.Context, ids: Sequence[int], schedule: str, reason: str | None, output: str) -> None:
    """Give events to one schedule again, whatever became of them there.

    Its filter counts; its cooldown and its gathering do not.

    \b
    Example: accsd events replay 4711 4712 --to nightly --reason "the disk was full"
    """
    wanted = list(dict.fromkeys(ids))
    answers = with_database(ctx, lambda db: topics.replay_events(db, wanted, schedule, by=operator(), reason=reason))
    tell((_outcome(answer, schedule) for answer in answers), output)


def _outcome(answer: ReplayAnswer, schedule: str) -> ChangeOutcome:
    number = answer.event_id
    match answer.verdict:
        case Verdict.ACCEPTED:
            said, then = f"event {number} is given to {schedule}", "accsd events"
        case Verdict.REPEATED:
            said, then = f"event {number} waits in {schedule} already", None
        case Verdict.REFUSED:
            why = {
                "not_found": "there is no such event, or it is not kept any more",
                "ended": f"{schedule} has ended",
                "not_by_event": f"{schedule} is not of kind event",
            }.get(answer.reason or "", answer.reason)
            said, then = f"event {number} can't be replayed: {why}", None
    return ChangeOutcome(number, answer.verdict, answer.reason, said, then)
