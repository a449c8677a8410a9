"""`accsd conditions`: how conditions stand, what they were judged by, and reporting a sample."""

from dataclasses import asdict
from typing import Any, Final

import click

from accsd.cli import times
from accsd.cli.output import output_option, say, show
from accsd.cli.session import operator, with_database
from accsd.db import conditions as store
from accsd.db.answers import Verdict
from accsd.db.conditions import ConditionRow, SampleRow
from accsd.db.pool import Database
from accsd.db.views import jobs as job_views
from accsd.errors import InvalidValue, VerbRefused
from accsd.explain.conditions import led_to, meaning, stands, told, value
from accsd.explain.words import cut

_LONGEST: Final = 60
_COLUMNS: Final = ("condition", "schedule", "state", "since", "value", "measured", "fired")
_SAMPLE_COLUMNS: Final = ("at", "schedule", "value", "by", "led to")


@click.group()
def conditions() -> None:
    """Conditions: values that start a job when they cross a threshold. List them, show one, report a sample."""


@conditions.command("list")
@output_option()
@click.pass_context
def list_command(ctx: click.Context, output: str) -> None:
    """List the conditions of all schedules and how each one stands.

    \b
    Example: accsd conditions list
    """
    found = with_database(ctx, store.conditions)
    rows = [_cells(row) if output == "table" else asdict(row) for row in found]
    empty = "there is no condition: a schedule of kind condition has one"
    show(rows, {name: name for name in _COLUMNS}, output, name="name", empty=empty)


@conditions.command("show")
@click.argument("name")
@click.option("--limit", type=click.IntRange(0, 200), default=10, show_default=True, help="How many samples.")
@output_option()
@click.pass_context
def show_command(ctx: click.Context, name: str, limit: int, output: str) -> None:
    """Show a condition: what it means, how it stands and what it was last judged by.

    NAME is the condition's, or that of a schedule.

    \b
    Example: accsd conditions show load
    """

    async def work(db: Database) -> tuple[list[ConditionRow], list[SampleRow]]:
        return await store.conditions(db, name), await store.samples(db, name, limit=limit)

    found, samples = with_database(ctx, work)
    if output != "table":
        known = [{**asdict(row), "samples": _of(row, samples)} for row in found]
        show(known, {}, output, name="name")
        return
    show([_cells(row) for row in found], {name: name for name in _COLUMNS}, output)
    for row in found:
        say(f"{row.schedule}: {meaning(row.condition)}; starts {row.workflow}")
        for said in (row.schedule_reason if row.schedule_state == "broken" else None, row.last_error):
            if said is not None:
                say(f"  {said}")
    if samples:
        say("")
        show([_sample(row) for row in samples], {name: name for name in _SAMPLE_COLUMNS}, output)


@conditions.command("report")
@click.argument("name")
@click.argument("value", metavar="VALUE")
@click.option("--at", metavar="TIME", help='When it was measured: "5m ago", 18:30, an ISO time.  [default: now]')
@click.option("--key", help="The same key again changes nothing.")
@output_option()
@click.pass_context
def report_command(ctx: click.Context, name: str, value: str, at: str | None, key: str | None, output: str) -> None:
    """Report a sample of a condition: a number, true, false, or null where it could not be measured.

    It goes to every schedule that has this condition. A value that begins with a minus stands after --.

    \b
    Examples:
      accsd conditions report load 17.5
      accsd conditions report door true --key door-2026-11-18T09:00
      accsd conditions report temperature -- -4
    """
    given = value_of(value)

    async def work(db: Database) -> list[store.SampleAnswer]:
        then = None if at is None else times.past(at, await job_views.clock(db))
        return await store.report_sample(db, name, given, at=then, key=key, by=operator())

    answers = with_database(ctx, work)
    if output == "table":
        for answer in answers:
            say(told(answer), err=answer.verdict is Verdict.REFUSED)
    else:
        show([asdict(answer) for answer in answers], {}, output, name="schedule")
    if all(answer.verdict is Verdict.REFUSED for answer in answers):
        raise VerbRefused("report_sample", answers[0].reason or "unknown", subject=name)


def value_of(written: str) -> float | bool | None:
    """A value as people type it; None where it could not be measured."""
    named: dict[str, bool | None] = {"true": True, "false": False, "null": None}
    if written.lower() in named:
        return named[written.lower()]
    try:
        number = float(written)
    except ValueError:
        number = float("nan")
    if not abs(number) < float("inf"):
        raise InvalidValue(f'"{written}" is no value: a number, true, false or null')
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


def _cells(row: ConditionRow) -> dict[str, Any]:
    return {
        "condition": row.name,
        "schedule": row.schedule,
        "state": stands(row),
        "since": row.since,
        "value": value(row.last_value),
        "measured": row.last_at,
        "fired": row.last_fired_at,
    }


def _sample(row: SampleRow) -> dict[str, Any]:
    said = cut(led_to(row), _LONGEST)
    return {"at": row.at, "schedule": row.schedule, "value": value(row.value), "by": row.by, "led to": said}


def _of(row: ConditionRow, samples: list[SampleRow]) -> list[dict[str, Any]]:
    return [asdict(sample) for sample in samples if sample.schedule == row.schedule]
