"""`accsd schedules pause|resume|snooze|unsnooze|skip|unskip|run|hold`: what people do to a schedule that is there."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import click

from accsd.cli import completion, times
from accsd.cli.changes import tell
from accsd.cli.options import merged
from accsd.cli.output import output_option
from accsd.cli.schedules.options import rule_of, why_option
from accsd.cli.session import operator, with_database
from accsd.db import firings
from accsd.db import schedules as verbs
from accsd.db.pool import Database
from accsd.db.views import schedules as views
from accsd.db.views.jobs import clock
from accsd.errors import InvalidValue
from accsd.explain import occurrences
from accsd.explain import schedule_changes as said
from accsd.explain.changes import ChangeOutcome
from accsd.planning.recurrence import zone_rules

_name = click.argument("name", shell_complete=completion.schedule_names)


@click.command("pause")
@_name
@click.option("--until", metavar="TIME", help='It goes on then by itself: "in 2h", 18:30, 2027-01-31.')
@why_option
@output_option()
@click.pass_context
def pause_command(ctx: click.Context, name: str, until: str | None, reason: str | None, output: str) -> None:
    """Let a schedule start nothing. What comes due meanwhile is skipped; jobs that run go on.

    \b
    Example: accsd schedules pause nightly --until "in 2h" --reason "the disk is being replaced"
    """

    async def work(db: Database) -> ChangeOutcome:
        row = await views.schedule_named(db, name)
        end = None if until is None else times.in_zone(until, zone_rules().zone(row.timezone), row.now, ahead=True)
        if end is not None and end <= row.now:
            raise InvalidValue(f'--until "{until}" has passed', hint="give a time that is ahead")
        answer = await verbs.pause_schedule(db, row.name, until=end, by=operator(), reason=reason)
        return said.paused(row.name, answer, end)

    tell([with_database(ctx, work)], output)


@click.command("resume")
@_name
@click.option(
    "--recover",
    type=click.Choice(["none", "one", "all"]),
    default="none",
    show_default=True,
    help="Of what this pause has skipped run nothing, the latest, or all that is not too old.",
)
@why_option
@output_option()
@click.pass_context
def resume_command(ctx: click.Context, name: str, recover: str, reason: str | None, output: str) -> None:
    """Let a paused schedule go on.

    \b
    Example: accsd schedules resume nightly --recover one
    """

    async def work(db: Database) -> ChangeOutcome:
        row = await views.schedule_named(db, name)
        answer, recovered = await verbs.resume_schedule(db, row.name, recover=recover, by=operator(), reason=reason)
        return said.resumed(row.name, answer, recovered)

    tell([with_database(ctx, work)], output)


@click.command("snooze")
@_name
@click.option("--for", "length", type=times.LENGTH, metavar="TIME", help="So much later than it is due now.")
@click.option("--until", metavar="TIME", help="Then: 18:30, 2027-01-31T06:00.")
@why_option
@output_option()
@click.pass_context
def snooze_command(
    ctx: click.Context, name: str, length: timedelta | None, until: str | None, reason: str | None, output: str
) -> None:
    """Put the next occurrence of a schedule off, and no other. Again, it counts from the due time that it has.

    \b
    Example: accsd schedules snooze nightly --for 2h
    """
    if (length is None) == (until is None):
        raise InvalidValue("a snooze is --for a time, or --until a time", hint="give one of them: --for 2h")

    async def work(db: Database) -> ChangeOutcome:
        row = await views.schedule_named(db, name)
        zone = zone_rules().zone(row.timezone)
        end = None if until is None else times.in_zone(until, zone, row.now, ahead=True)
        answer = await firings.snooze(db, row.name, length=length, until=end, by=operator(), reason=reason)
        due = "" if answer.due_at is None else occurrences.due_text(answer.due_at, row.timezone, row.now)
        return said.snoozed(row.name, answer, due)

    tell([with_database(ctx, work)], output)


@click.command("unsnooze")
@_name
@why_option
@output_option()
@click.pass_context
def unsnooze_command(ctx: click.Context, name: str, reason: str | None, output: str) -> None:
    """Give what was snoozed its own due time back; what has passed runs now."""

    async def work(db: Database) -> ChangeOutcome:
        row = await views.schedule_named(db, name)
        return said.unsnoozed(row.name, await firings.unsnooze(db, row.name, by=operator(), reason=reason))

    tell([with_database(ctx, work)], output)


# One time


@click.command("skip")
@_name
@click.argument("time")
@why_option
@output_option()
@click.pass_context
def skip_command(ctx: click.Context, name: str, time: str, reason: str | None, output: str) -> None:
    """Let one occurrence that is ahead not run. TIME is local to the schedule's zone, or has an offset; `02:30` is the
    next one.

    \b
    Example: accsd schedules skip nightly 2026-12-25T02:30 --reason Christmas
    """
    _mark(ctx, name, time, reason, output, skip=True)


@click.command("unskip")
@_name
@click.argument("time")
@why_option
@output_option()
@click.pass_context
def unskip_command(ctx: click.Context, name: str, time: str, reason: str | None, output: str) -> None:
    """Let an occurrence run that was to be skipped."""
    _mark(ctx, name, time, reason, output, skip=False)


def _mark(ctx: click.Context, name: str, time: str, reason: str | None, output: str, *, skip: bool) -> None:
    async def work(db: Database) -> ChangeOutcome:
        row = await views.schedule_named(db, name)
        rule = rule_of(ctx, row)
        which = occurrences.the_one(row.name, rule, times.on_the_wall(time, rule.zone, row.now, ahead=True))
        if skip and row.state == "ended":
            raise InvalidValue(f"{row.name} has ended: nothing is ahead", hint=f"accsd schedules show {row.name}")
        answer = await firings.skip_occurrence(
            db, row.name, which.nominal, fold=which.fold, skip=skip, by=operator(), reason=reason
        )
        return said.skipped(row.name, which.nominal, answer, skip=skip)

    tell([with_database(ctx, work)], output)


# Now


@click.command("run")
@_name
@click.option("-O", "--option", "pairs", metavar="KEY=VALUE", multiple=True, help="On top of its options. Repeatable.")
@click.option("--options", "document", metavar="JSON", help="More options as a JSON object, or @FILE.")
@click.option("--key", help="Idempotency: the same key again is the same job.")
@click.option("--force", is_flag=True, help="Also beside a run that has not ended.")
@why_option
@output_option()
@click.pass_context
def run_command(
    ctx: click.Context,
    name: str,
    pairs: Sequence[str],
    document: str | None,
    key: str | None,
    force: bool,
    reason: str | None,
    output: str,
) -> None:
    """Start a job of a schedule now, paused or not. It moves no due time.

    \b
    Example: accsd schedules run nightly -O full=true --reason "after the restore"
    """
    options: dict[str, Any] | None = merged(document, pairs, option="-O") if pairs or document is not None else None

    async def work(db: Database) -> ChangeOutcome:
        row = await views.schedule_named(db, name)
        ran = await firings.run_now(db, row.name, options=options, key=key, force=force, by=operator(), reason=reason)
        return said.ran(row.name, ran)

    tell([with_database(ctx, work)], output)


@click.command("hold")
@click.option("--lift", is_flag=True, help="Let all schedules go on.")
@why_option
@output_option()
@click.pass_context
def hold_command(ctx: click.Context, lift: bool, reason: str | None, output: str) -> None:
    """Stop all schedules: nothing is settled until the hold is lifted. Then what was due meanwhile is late, as if
    nobody had been there.

    \b
    Examples:
      accsd schedules hold --reason "restore of the database"
      accsd schedules hold --lift
    """

    async def work(db: Database) -> ChangeOutcome:
        verdict = await verbs.hold_schedules(db, lift=lift, by=operator(), reason=reason)
        now = await views.hold(db)
        by, because, age = (None, None, None) if now is None else (now.by, now.reason, await clock(db) - now.since)
        return said.held(verdict, lift=lift, by=by, because=because, held_for=age)

    tell([with_database(ctx, work)], output)
