"""`accsd schedules`: what starts jobs by itself. Here is what only looks: lists, one screen for one schedule, previews,
the ledger, the load."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import click

from accsd.cli import completion, times
from accsd.cli.output import output_option, say, say_json, show, styled
from accsd.cli.schedule_backfills import backfill_command, backfills_group
from accsd.cli.schedule_calendars import calendars_group
from accsd.cli.schedule_changes import (
    hold_command,
    pause_command,
    resume_command,
    run_command,
    skip_command,
    snooze_command,
    unskip_command,
    unsnooze_command,
)
from accsd.cli.schedule_definitions import apply_command, create_command, edit_command, end_command
from accsd.cli.schedule_options import TIMES, rule_of, say_preview, timing_options
from accsd.cli.session import settings_of, with_database
from accsd.db.pool import Database
from accsd.db.views import jobs as job_views
from accsd.db.views import schedules as views
from accsd.db.views.schedules import LedgerFilter, ScheduleRow
from accsd.errors import InvalidValue, UserError
from accsd.explain import schedules as words
from accsd.explain.words import duration, short
from accsd.model.schedule import ScheduleDef
from accsd.planning.recurrence import LintWarning, PreviewRow, Rule, lint, parse_time, zone_rules

_STATES: Final = ("active", "paused", "snoozed", "held", "ended", "broken")
_OUTCOMES: Final = ("fired", "caught_up", "skipped", "missed", "merged", "snoozed")
_NEXT: Final = 3
_LAST: Final = 10
_LOOKED_AT: Final = 20  # for what is being lost
_HISTORY: Final = 5
_LEDGER: Final = {"nominal": "nominal", "outcome": "outcome", "late": "late", "job": "job", "what": "what"}


@click.group()
def schedules() -> None:
    """What starts jobs by itself: made, changed, previewed, paused, and every due time accounted for.

    A schedule says when (--cron, --rrule, --every or --at, in a time zone), which workflow, and what happens if nobody
    was there (--missed) or the last run still runs (--overlap). Each time that it names gets one row in its ledger,
    whatever became of it.

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
@click.option("--all", "ended", is_flag=True, help="Also those that have ended.")
@output_option()
@click.pass_context
def list_command(ctx: click.Context, states: Sequence[str], workflow: str | None, ended: bool, output: str) -> None:
    """List the schedules, by name: when each is due next, and which stand still and why.

    \b
    Example: accsd schedules list --state paused --state broken
    """
    found = with_database(ctx, lambda db: views.schedules(db, states=states, workflow=workflow, ended=ended))
    if output == "table":
        columns = {"name": "name", "state": "state", "next": "next", "workflow": "workflow", "when": "when"}
        columns |= {"jobs": "jobs", "why": "why"}
        is_selective = bool(states or workflow)
        empty = "no such schedules" if is_selective else "no schedules yet: `accsd schedules create` makes one"
        show([_line(row) for row in found], columns, output, empty=empty)
    else:
        spread = settings_of(ctx).scheduler.spread
        rows = [words.schedule_document(row, _rule_or_none(row, spread)) for row in found]
        show(rows, {}, output, name="name")


def _line(row: ScheduleRow) -> dict[str, Any]:
    said = words.state_words(row)
    waiting = f" +{row.waiting_jobs} waiting" if row.waiting_jobs else ""
    return {
        "name": row.name,
        "state": row.state,
        "next": words.away(row.next_due, row.now) if row.next_due and row.state in ("active", "snoozed") else "",
        "workflow": row.workflow,
        "when": f"{row.schedule_kind} {row.schedule_expr} {row.timezone}",
        "jobs": f"{row.open_jobs}{waiting}" if row.open_jobs or waiting else "",
        "why": "" if said == row.state else said,
    }


def _rule_or_none(row: ScheduleRow, spread: timedelta) -> Rule | None:
    """A schedule that was written by hand may have a rule that can't be read: then it is broken, and says why."""
    try:
        return row.timing().rule(spread) if row.has_times else None
    except UserError:
        return None


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
    found = with_database(ctx, lambda db: _looked_at(db, name, spread))
    if output == "table":
        _screen(found)
    else:
        show([found.document()], {}, output, name="name")


async def _looked_at(db: Database, name: str, spread: timedelta) -> words.Picture:
    row = await views.schedule_named(db, name)
    rule = _rule_or_none(row, spread)
    marks = words.marks_of(await views.skips_of(db, row.id), await views.snoozes_of(db, row.id))
    looked_at = await views.ledger_of(db, row.id, LedgerFilter(limit=_LOOKED_AT, by_time=True))
    usual = await views.usual_times_of(db, row.id)
    return words.Picture(
        row=row,
        rule=rule,
        ahead=_ahead(row, rule, _NEXT, marks),
        last=await views.ledger_of(db, row.id, LedgerFilter(limit=_LAST)),
        losing=words.losing(looked_at, usual),
        history=await views.history_of(db, row.id, limit=_HISTORY),
        runs=await views.open_runs_of(db, row.id),
        warnings=() if rule is None or row.state == "ended" else lint(rule, row.now, usual_run=usual.run),
    )


def _ahead(row: ScheduleRow, rule: Rule | None, n: int, marks: words.Marks) -> list[PreviewRow]:
    if rule is None or row.state in ("ended", "broken"):
        return []
    runs_left = None if row.max_runs is None else row.max_runs - row.runs
    return words.ahead(rule, row.now, n, marks=marks, runs_left=runs_left)


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
    if row.has_times:
        say(f"losing  {found.losing}")
    if found.ahead and rule is not None:
        say("\nnext")
        say_preview(found.ahead, rule.zone, row.now)
    if found.last:
        say("\nledger")
        show([words.firing_words(each, row.timezone) for each in found.last], _LEDGER, "table")
    if found.runs:
        say("\njobs")
        lines = [
            {
                "job": short(each.job_id),
                "status": each.status,
                "age": words.away(each.created_at, row.now),
                "why": _waits(each),
            }
            for each in found.runs
        ]
        show(lines, {"job": "job", "status": "status", "age": "submitted", "why": ""}, "table")
    say("\nhistory")
    for each in found.history:
        say(f"  {words.history_words(each, row.now)}")
    _warn(found.warnings)


def _waits(run: views.RunRow) -> str:
    return f"waits for its run key {run.run_key}" if run.waits else ""


def _warn(warnings: Sequence[LintWarning]) -> None:
    for warning in warnings:
        say(f"warning: {words.warning_words(warning)}", err=True)


# What is ahead


@schedules.command("preview")
@click.argument("name", required=False, shell_complete=completion.schedule_names)
@timing_options
@click.option("--from", "begin", metavar="TIME", help="After this moment instead of now.")
@click.option("-n", "count", type=click.IntRange(1, 1000), default=10, show_default=True, help="How many.")
@output_option()
@click.pass_context
def preview_command(
    ctx: click.Context, name: str | None, begin: str | None, count: int, output: str, **given: Any
) -> None:
    """Show when something is due: a schedule, with its skips and snoozes, or times that are not written yet.

    Times that are given as options need no database. What the clock's changes do to each is marked.

    \b
    Examples:
      accsd schedules preview nightly -n 5
      accsd schedules preview --cron '30 2 * * *' --timezone Europe/Berlin --from 2024-10-26T12:00:00Z -n 3
      accsd schedules preview --rrule 'FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=17' --timezone Europe/Chisinau
    """
    written = {key: value for key, value in given.items() if value not in (None, ())}
    if (name is None) == (not any(key in written for key in TIMES)):
        raise InvalidValue(
            "a preview is of a schedule, or of --cron, --rrule, --every or --at", hint="give one of them"
        )
    if name is None:
        rule, now, rows = _previewed(written, begin, count)
    else:
        rule, now, rows = _previewed_schedule(ctx, name, begin, count)
    if output != "table":
        show([words.preview_document(row) for row in rows], {}, output, name="due_at")
        return
    say(words.explain(rule))
    say_preview(rows, rule.zone, now)
    _warn(lint(rule, now))


def _previewed(written: dict[str, Any], begin: str | None, count: int) -> tuple[Rule, datetime, list[PreviewRow]]:
    if named := [key for key in ("exclude", "only_on") if key in written]:
        raise InvalidValue(f"--{named[0].replace('_', '-')} is for schedules: without one no calendar is asked for")
    wanted = ScheduleDef.model_validate({"name": "preview", "workflow": "preview", **written})
    now = datetime.now(UTC)
    after = now if begin is None else times.in_zone(begin, zone_rules().zone(wanted.timezone), now, ahead=True)
    rule = wanted.timing(id="preview", created_at=after, anchor=None, calendars={}).rule()
    return rule, after, words.ahead(rule, after, count)


def _previewed_schedule(
    ctx: click.Context, name: str, begin: str | None, count: int
) -> tuple[Rule, datetime, list[PreviewRow]]:
    async def work(db: Database) -> tuple[Rule, datetime, list[PreviewRow]]:
        row = await views.schedule_named(db, name)
        rule = rule_of(ctx, row)
        marks = words.marks_of(await views.skips_of(db, row.id), await views.snoozes_of(db, row.id))
        after = row.now if begin is None else times.in_zone(begin, rule.zone, row.now, ahead=True)
        runs_left = None if row.max_runs is None or begin is not None else row.max_runs - row.runs
        return rule, after, words.ahead(rule, after, count, marks=marks, runs_left=runs_left)

    return with_database(ctx, work)


@schedules.command("load")
@click.option(
    "--for", "span", type=times.LENGTH, default="1d", show_default=True, metavar="TIME", help="How far to look ahead."
)
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="How many minutes.")
@output_option()
@click.pass_context
def load_command(ctx: click.Context, span: timedelta, limit: int, output: str) -> None:
    """Show how many occurrences are due in each minute of the next day, the fullest minutes first.

    \b
    Example: accsd schedules load --for 6h
    """
    if span > timedelta(days=7):
        raise InvalidValue("the load of more than a week is too long to count", hint="write --for 1d")
    spread = settings_of(ctx).scheduler.spread

    async def work(db: Database) -> tuple[datetime, list[ScheduleRow]]:
        found = await views.schedules(db, states=["active", "snoozed", "held"])
        return await job_views.clock(db), found

    now, found = with_database(ctx, work)
    minutes: dict[datetime, Counter[str]] = {}
    for row in found:
        if (rule := _rule_or_none(row, spread)) is not None:
            _count(minutes, row.name, rule, now, now + span)
    fullest = sorted(minutes.items(), key=lambda each: (-each[1].total(), each[0]))[:limit]
    rows = [
        {"minute": minute, "due": names.total(), "schedules": dict(names.most_common()) if output != "table" else None}
        | ({"at": f"{minute.astimezone():%a %Y-%m-%d %H:%M}", "names": _few(names)} if output == "table" else {})
        for minute, names in fullest
    ]
    columns = {"at": "minute", "due": "due", "names": "schedules"}
    show(rows, columns, output, name="minute", empty=f"nothing is due within {duration(span)}")


def _count(minutes: dict[datetime, Counter[str]], name: str, rule: Rule, begin: datetime, end: datetime) -> None:
    for each in words.between(rule, begin, end - rule.shift):
        if each.fires:
            minutes.setdefault(each.due_at.replace(second=0, microsecond=0), Counter())[name] += 1


def _few(names: Counter[str]) -> str:
    told = [name if count == 1 else f"{name} ×{count}" for name, count in names.most_common(5)]
    return ", ".join(told) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


# What has happened


@schedules.command("ledger")
@click.argument("name", shell_complete=completion.schedule_names)
@click.option("--at", metavar="TIME", help="What happened at that time; without an offset it is local to its zone.")
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

    \b
    Examples:
      accsd schedules ledger nightly --outcome missed --outcome skipped --since 30d
      accsd schedules ledger nightly --at 2026-10-25T02:30
    """
    if at is not None:
        _tell_at(ctx, name, at, output)
        return

    async def work(db: Database) -> tuple[ScheduleRow, list[views.FiringRow]]:
        row = await views.schedule_named(db, name)
        zone = zone_rules().zone(row.timezone)
        begin = None if since is None else times.in_zone(since, zone, row.now, ahead=False)
        return row, await views.ledger_of(db, row.id, LedgerFilter(since=begin, outcomes=outcomes, limit=limit))

    row, found = with_database(ctx, work)
    if output == "table":
        empty = "nothing like that" if since or outcomes else "nothing was due yet"
        show([words.firing_words(each, row.timezone) for each in found], _LEDGER, output, empty=empty)
    else:
        show([asdict(each) | {"words": words.fate(each, row.timezone)} for each in found], {}, output, name="nominal")


def _tell_at(ctx: click.Context, name: str, at: str, output: str) -> None:
    moment = parse_time(at)

    async def work(db: Database) -> dict[str, Any]:
        row = await views.schedule_named(db, name)
        rule = rule_of(ctx, row)
        around = words.named_at(rule, moment)
        nominal = around.named[0].nominal if around.named else rule.zone.local(moment) if moment.tzinfo else moment
        rows = await views.firings_at(db, row.id, nominal.replace(tzinfo=None, fold=0))
        folds = {each.fold for each in around.named} if moment.tzinfo else {0, 1}
        rows = [each for each in rows if each.fold in folds or each.until_nominal is not None or not around.named]
        marks = words.marks_of(await views.skips_of(db, row.id), await views.snoozes_of(db, row.id))
        return words.what_happened(row, nominal, around, rows, marks)

    told = with_database(ctx, work)
    if output == "table":
        for sentence in told["sentences"]:
            say(sentence)
    elif output == "name":
        say(told["answer"])
    else:
        say_json(told)
