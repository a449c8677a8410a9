"""`accsd schedules ledger`: what became of each due time, event and crossing."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any, Final

import click

from accsd.cli import completion, times
from accsd.cli.output import output_option, say, say_json, show
from accsd.cli.schedules.options import rule_of
from accsd.cli.session import with_database
from accsd.db.pool import Database
from accsd.db.views import firings
from accsd.db.views import schedules as views
from accsd.db.views.firings import FiringRow, LedgerFilter
from accsd.db.views.schedules import ScheduleRow
from accsd.explain import occurrences
from accsd.explain import schedules as words
from accsd.explain.ledger import fate, firing_words
from accsd.planning.recurrence import instant_of, zone_rules

LEDGER: Final = {"nominal": "nominal", "outcome": "outcome", "late": "late", "job": "job", "what": "what"}
_OUTCOMES: Final = ("fired", "caught_up", "skipped", "missed", "merged", "snoozed")


@click.command("ledger")
@click.argument("name", shell_complete=completion.schedule_names)
@click.option(
    "--at", metavar="TIME", help="What happened then: 'sunday 02:30', 2026-10-25T02:30; without an offset it is local."
)
@click.option("--since", metavar="TIME", help="Only what was due since: 2h, today, 2027-01-31.")
@click.option("--outcome", "outcomes", type=click.Choice(_OUTCOMES), multiple=True, help="Only these. Repeatable.")
@click.option("-n", "limit", type=click.IntRange(1, 100_000), default=20, show_default=True, help="How many.")
@output_option()
@click.pass_context
def ledger_command(
    ctx: click.Context,
    name: str,
    at: str | None,
    since: str | None,
    outcomes: Sequence[str],
    limit: int,
    output: str,
) -> None:
    """Show what became of each due time of a schedule, newest first; with --at, of one.

    A schedule of kind event or condition has rows for events and crossings; --at is then a minute.

    \b
    Examples:
      accsd schedules ledger nightly --outcome missed --outcome skipped --since 30d
      accsd schedules ledger nightly --at 'sunday 02:30'
    """
    if at is not None:
        _tell_at(ctx, name, at, output)
        return

    async def work(db: Database) -> tuple[ScheduleRow, list[FiringRow]]:
        row = await views.schedule_named(db, name)
        zone = zone_rules().zone(row.timezone)
        begin = None if since is None else times.in_zone(since, zone, row.now, ahead=False)
        return row, await firings.ledger_of(db, row.id, LedgerFilter(since=begin, outcomes=outcomes, limit=limit))

    row, found = with_database(ctx, work)
    if output == "table":
        empty = "nothing like that" if since or outcomes else "nothing was due yet"
        show([firing_words(each, row.timezone) for each in found], LEDGER, output, empty=empty)
    else:
        show([asdict(each) | {"words": fate(each, row.timezone)} for each in found], {}, output, name="nominal")


def _tell_at(ctx: click.Context, name: str, at: str, output: str) -> None:
    async def work(db: Database) -> dict[str, Any]:
        row = await views.schedule_named(db, name)
        moment = times.on_the_wall(at, zone_rules().zone(row.timezone), row.now, ahead=False)
        return await (_named_time(ctx, db, row, moment) if row.has_times else _minute(db, row, moment))

    told = with_database(ctx, work)
    if output == "table":
        for sentence in told["sentences"]:
            say(sentence)
    elif output == "name":
        say(told["answer"])
    else:
        say_json(told)


async def _named_time(ctx: click.Context, db: Database, row: ScheduleRow, moment: datetime) -> dict[str, Any]:
    rule = rule_of(ctx, row)
    around = occurrences.named_at(rule, moment)
    nominal = around.named[0].nominal if around.named else rule.zone.local(moment) if moment.tzinfo else moment
    rows = await firings.firings_at(db, row.id, nominal.replace(tzinfo=None, fold=0))
    folds = {each.fold for each in around.named} if moment.tzinfo else {0, 1}
    rows = [each for each in rows if each.fold in folds or each.until_nominal is not None or not around.named]
    marks = occurrences.marks_of(await views.skips_of(db, row.id), await views.snoozes_of(db, row.id))
    return words.what_happened(row, nominal, around, rows, marks)


async def _minute(db: Database, row: ScheduleRow, moment: datetime) -> dict[str, Any]:
    """What happened in a minute to a schedule without times."""
    begin = instant_of(moment, zone_rules().zone(row.timezone)) if moment.tzinfo is None else moment
    around = await firings.firings_around(db, row.id, begin, begin + timedelta(minutes=1))
    return words.what_happened_around(row, begin, around)
