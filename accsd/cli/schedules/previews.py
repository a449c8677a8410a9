"""`accsd schedules preview|load`: what is ahead."""

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from accsd.cli import completion, times
from accsd.cli.output import output_option, say, show
from accsd.cli.schedules.options import rule_of, say_preview, timing_options, warn, written
from accsd.cli.session import settings_of, with_database
from accsd.db.pool import Database
from accsd.db.views import jobs as job_views
from accsd.db.views import schedules as views
from accsd.db.views.schedules import ScheduleRow
from accsd.errors import InvalidValue
from accsd.explain import occurrences
from accsd.explain import schedules as words
from accsd.explain.schedule_definitions import check_expressions
from accsd.explain.words import duration
from accsd.model.schedule import KINDS, ScheduleDef
from accsd.planning.recurrence import PreviewRow, Rule, explain, lint, zone_rules


@dataclass(frozen=True, slots=True)
class _Preview:
    """What a schedule means, and when it is due; without a rule it is due at no time of its own."""

    meaning: str
    rule: Rule | None
    after: datetime
    rows: list[PreviewRow]


@click.command("preview")
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

    What is given as options needs no database. What the clock's changes do to each time is marked. Events and
    conditions have no times: they are checked, and told in words.

    \b
    Examples:
      accsd schedules preview nightly -n 5
      accsd schedules preview --cron '30 2 * * *' --timezone Europe/Berlin --from 2024-10-26T12:00:00Z -n 3
      accsd schedules preview --rrule 'FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=17' --timezone Europe/Chisinau
      accsd schedules preview --event 'shop.order.*' --filter 'event.payload.total > 100.0'
    """
    fields = written(given)
    if (name is None) == (not fields.keys() & KINDS.keys()):
        raise InvalidValue(
            "a preview is of a schedule, or of --cron, --rrule, --every, --at, --event or --condition",
            hint="give one of them",
        )
    found = _previewed(fields, begin, count) if name is None else _previewed_schedule(ctx, name, begin, count)
    if output != "table":
        show([occurrences.preview_document(row) for row in found.rows], {}, output, name="due_at")
        return
    say(found.meaning)
    if found.rule is None:
        say("It is due at no time of its own.")
        return
    say_preview(found.rows, found.rule.zone, found.after)
    warn(lint(found.rule, found.after))


def _previewed(fields: dict[str, Any], begin: str | None, count: int) -> _Preview:
    if named := [key for key in ("exclude", "only_on") if key in fields]:
        raise InvalidValue(f"--{named[0].replace('_', '-')} is for schedules: without one no calendar is asked for")
    wanted = ScheduleDef.model_validate({"name": "preview", "workflow": "preview", **fields})
    check_expressions(wanted)
    now = datetime.now(UTC)
    after = now if begin is None else times.in_zone(begin, zone_rules().zone(wanted.timezone), now, ahead=True)
    if not wanted.has_times:
        return _Preview(words.meaning(None, wanted, None), None, after, [])
    rule = wanted.timing(id="preview", created_at=after, anchor=None, calendars={}).rule()
    return _Preview(explain(rule), rule, after, occurrences.ahead(rule, after, count))


def _previewed_schedule(ctx: click.Context, name: str, begin: str | None, count: int) -> _Preview:
    async def work(db: Database) -> _Preview:
        row = await views.schedule_named(db, name)
        if not row.has_times:
            return _Preview(words.meaning(None, row, None), None, row.now, [])
        rule = rule_of(ctx, row)
        marks = occurrences.marks_of(await views.skips_of(db, row.id), await views.snoozes_of(db, row.id))
        after = row.now if begin is None else times.in_zone(begin, rule.zone, row.now, ahead=True)
        runs_left = None if row.max_runs is None or begin is not None else row.max_runs - row.runs
        rows = occurrences.ahead(rule, after, count, marks=marks, runs_left=runs_left)
        return _Preview(explain(rule), rule, after, rows)

    return with_database(ctx, work)


@click.command("load")
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
        if (rule := words.rule_or_none(row, spread)) is not None:
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
    for each in occurrences.between(rule, begin, end - rule.shift):
        if each.fires:
            minutes.setdefault(each.due_at.replace(second=0, microsecond=0), Counter())[name] += 1


def _few(names: Counter[str]) -> str:
    told = [name if count == 1 else f"{name} ×{count}" for name, count in names.most_common(5)]
    return ", ".join(told) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
