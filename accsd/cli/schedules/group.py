"""`accsd schedules`: the group, a list of schedules, and one screen for one."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import click

from accsd.cli import completion
from accsd.cli.output import output_option, say, show, styled
from accsd.cli.schedules.backfills import backfill_command, backfills_group
from accsd.cli.schedules.calendars import calendars_group
from accsd.cli.schedules.changes import (
    hold_command,
    pause_command,
    resume_command,
    run_command,
    skip_command,
    snooze_command,
    unskip_command,
    unsnooze_command,
)
from accsd.cli.schedules.definitions import create_command, edit_command, end_command
from accsd.cli.schedules.files import apply_command
from accsd.cli.schedules.ledger import LEDGER, ledger_command
from accsd.cli.schedules.options import say_preview, warn
from accsd.cli.schedules.previews import load_command, preview_command
from accsd.cli.session import settings_of, with_database
from accsd.db.views import schedules as views
from accsd.db.views.schedules import ScheduleRow
from accsd.explain import schedules as words
from accsd.explain.ledger import firing_words
from accsd.explain.words import away, short

_STATES: Final = ("active", "paused", "snoozed", "held", "ended", "broken")


@click.group()
def schedules() -> None:
    """What starts jobs by itself: made, changed, previewed, paused, and every due time accounted for.

    A schedule says when (--cron, --rrule, --every or --at, in a time zone; or --event, or --condition), which workflow,
    and what happens if nobody was there (--missed) or the last run still runs (--overlap). Each due time, event and
    crossing gets one row in its ledger, whatever became of it.

    \b
    Examples:
      accsd schedules preview --cron '30 2 * * MON-FRI' --timezone Europe/Berlin
      accsd schedules create nightly --workflow backup --cron '30 2 * * *' --timezone Europe/Berlin
      accsd schedules show nightly
      accsd schedules ledger nightly --at 2026-10-25T02:30
    """


for _command in (
    create_command,
    edit_command,
    apply_command,
    preview_command,
    load_command,
    ledger_command,
    end_command,
    pause_command,
    resume_command,
    snooze_command,
    unsnooze_command,
    skip_command,
    unskip_command,
    run_command,
    hold_command,
    backfill_command,
    backfills_group,
    calendars_group,
):
    schedules.add_command(_command)


@schedules.command("list")
@click.option("--state", "states", type=click.Choice(_STATES), multiple=True, help="Only in this state. Repeatable.")
@click.option("--workflow", shell_complete=completion.workflow_names, help="Only those of this workflow.")
@click.option("--by", metavar="ACTOR", help="Only those that this person, program or assistant has made.")
@click.option("--all", "ended", is_flag=True, help="Also those that have ended.")
@output_option()
@click.pass_context
def list_command(
    ctx: click.Context, states: Sequence[str], workflow: str | None, by: str | None, ended: bool, output: str
) -> None:
    """List the schedules, by name: when each is due next, and which stand still and why.

    \b
    Examples:
      accsd schedules list --state paused --state broken
      accsd schedules list --by helper -o name | xargs -d '\\n' -n 1 accsd schedules end --cancel
    """
    rows = with_database(ctx, lambda db: views.schedules(db, states=states, workflow=workflow, ended=ended))
    found = [row for row in rows if by in (None, row.created_by)]
    if output == "table":
        columns = {"name": "name", "state": "state", "next": "next", "workflow": "workflow", "when": "when"}
        columns |= {"jobs": "jobs", "why": "why"}
        is_selective = bool(states or workflow or by)
        empty = "no such schedules" if is_selective else "no schedules yet: `accsd schedules create` makes one"
        show([_line(row) for row in found], columns, output, empty=empty)
    else:
        spread = settings_of(ctx).scheduler.spread
        rows = [words.schedule_document(row, words.rule_or_none(row, spread)) for row in found]
        show(rows, {}, output, name="name")


def _line(row: ScheduleRow) -> dict[str, Any]:
    said = words.state_words(row)
    waiting = f" +{row.waiting_jobs} waiting" if row.waiting_jobs else ""
    return {
        "name": row.name,
        "state": row.state,
        "next": away(row.next_due, row.now) if row.next_due and row.state in ("active", "snoozed") else "",
        "workflow": row.workflow,
        "when": words.when(row),
        "jobs": f"{row.open_jobs}{waiting}" if row.open_jobs or waiting else "",
        "why": "" if said == row.state else said,
    }


# One screen


@schedules.command("show")
@click.argument("name", shell_complete=completion.schedule_names)
@output_option()
@click.pass_context
def show_command(ctx: click.Context, name: str, output: str) -> None:
    """Show one schedule: what it means, its state and why, what is next, what happened last, and what it is losing.

    \b
    Example: accsd schedules show nightly
    """
    spread = settings_of(ctx).scheduler.spread
    found = with_database(ctx, lambda db: words.picture_of(db, name, spread))
    if output == "table":
        _screen(found)
    else:
        show([found.document()], {}, output, name="name")


def _screen(found: words.Picture) -> None:
    row, rule = found.row, found.rule
    title = f"  {row.title}" if row.title else ""
    say(styled(row.name, bold=True), f"{title}  workflow {row.workflow}, revision {row.revision}, by {row.created_by}")
    if row.description:
        say(row.description)
    if rule is not None or not row.has_times:
        say(words.meaning(rule, row, row.now))
    then = words.what_next(row)
    say("state   ", styled(row.state), words.state_words(row).removeprefix(row.state), f"  → {then}" if then else "")
    if found.tally is not None:
        say(f"events  {words.tally_words(row, found.tally)}")
    elif found.condition is not None:
        say(f"value   {words.condition_words(found.condition, row.now)}")
    elif row.has_times:
        say(f"losing  {found.losing}")
    if found.ahead and rule is not None:
        say("\nnext")
        say_preview(found.ahead, rule.zone, row.now)
    if found.last:
        say("\nledger")
        show([firing_words(each, row.timezone) for each in found.last], LEDGER, "table")
    if found.runs:
        say("\njobs")
        lines = [_run(each, row.now) for each in found.runs]
        show(lines, {"job": "job", "status": "status", "age": "submitted", "why": ""}, "table")
    say("\nhistory")
    for each in found.history:
        say(f"  {words.history_words(each, row.now)}")
    warn(found.warnings)


def _run(run: views.OpenRun, now: datetime) -> dict[str, str]:
    why = f"waits for its run key {run.run_key}" if run.waits else ""
    return {"job": short(run.job_id), "status": run.status, "age": away(run.created_at, now), "why": why}
