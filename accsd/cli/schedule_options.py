"""What commands about schedules share: the options that say when and how, the rule of a schedule, tables of times."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

import click

from accsd.cli import completion, times
from accsd.cli.options import merged
from accsd.cli.output import show
from accsd.cli.session import settings_of
from accsd.db.views.schedules import ScheduleRow
from accsd.errors import InvalidValue
from accsd.explain import schedules as words
from accsd.planning.recurrence import PreviewRow, Rule, Zone

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

TIMES: Final = ("cron", "rrule", "every", "at")
_INT: Final = click.IntRange(-(2**31), 2**31 - 1)

_TIMING: Final[Sequence[Decorator]] = (
    click.option("--cron", metavar="EXPR", help="Five fields, or six with seconds first; @daily and such; H."),
    click.option("--rrule", metavar="RULE", help="A rule of RFC 5545: FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=17."),
    click.option("--every", "--interval", "every", metavar="TIME", help="In real time: 90m, 1h30m, PT90M."),
    click.option("--at", "--once", "at", metavar="TIME", help="Once: 2027-01-31T06:00, local or with an offset."),
    click.option("--timezone", metavar="ZONE", help="An IANA name, such as Europe/Berlin.  [default: UTC]"),
    click.option("--spread", type=times.LENGTH, metavar="TIME", help="Its share of this time later than it says."),
    click.option("--exclude", multiple=True, metavar="CALENDAR", help="Not on the days of it. Repeatable."),
    click.option("--only-on", multiple=True, metavar="CALENDAR", help="Only on the days of it. Repeatable."),
    click.option("--start", "start_at", metavar="TIME", help="Nothing before."),
    click.option("--end", "end_at", metavar="TIME", help="Nothing at that time, or after."),
)
_POLICIES: Final[Sequence[Decorator]] = (
    click.option("--title", help="A name for people."),
    click.option("--description", help="What it is for."),
    click.option("--version", type=click.IntRange(min=1), help="Of the workflow.  [default: the newest active one]"),
    click.option(
        "-O",
        "--option",
        "pairs",
        metavar="KEY=VALUE",
        multiple=True,
        help="An option of its jobs; a.b=1 makes {a: {b: 1}}; ${nominal} is the time. Repeatable.",
    ),
    click.option(
        "--options", "document", metavar="JSON", help="All options as a JSON object, or @FILE that holds one."
    ),
    click.option("--priority", type=_INT, help="Of its jobs: higher goes first.  [default: 0]"),
    click.option(
        "--missed",
        type=click.Choice(["skip", "one", "all"]),
        help="What was due while nobody was there: not at all, once for the latest, or each.  [default: one]",
    ),
    click.option("--grace", type=times.LENGTH, metavar="TIME", help="So late is still on time.  [default: 60s]"),
    click.option("--catch-up", type=times.LENGTH, metavar="TIME", help="What is older is missed for good."),
    click.option("--catch-up-max", type=click.IntRange(1, 1000), help="So many are caught up.  [default: 100]"),
    click.option(
        "--overlap",
        type=click.Choice(["allow", "skip", "queue", "queue_all", "cancel"]),
        help="What is due while the last run still runs.  [default: skip]",
    ),
    click.option("--run-key", metavar="KEY", help="Schedules with the same key exclude each other."),
    click.option("--max-runs", type=click.IntRange(min=1), help="It ends after so many."),
    click.option("--pause-after", type=click.IntRange(1, 100), help="So many failed jobs in a row pause it."),
    click.option("--pause-for", type=times.LENGTH, metavar="TIME", help="For so long.  [default: until it is resumed]"),
)
workflow_option: Final = click.option("--workflow", shell_complete=completion.workflow_names, help="What it starts.")
why_option: Final = click.option("--reason", help="Why, for those who wonder.")


def _all(options: Sequence[Decorator]) -> Decorator:
    def decorated(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorated


timing_options: Final = _all(_TIMING)
definition_options: Final = _all([workflow_option, *_TIMING, *_POLICIES])


def written(given: dict[str, Any], earlier: dict[str, Any] | None = None) -> dict[str, Any]:
    """What was typed, as fields of a definition. `earlier` are the options that the schedule has."""
    fields = {
        key: value for key, value in given.items() if value not in (None, ()) and key not in ("pairs", "document")
    }
    fields |= {key: list(fields[key]) for key in ("exclude", "only_on") if key in fields}
    if given["pairs"] or given["document"] is not None:
        kept = earlier if given["document"] is None else None
        fields["options"] = merged(given["document"], given["pairs"], option="-O", earlier=kept)
    return fields


def rule_of(ctx: click.Context, row: ScheduleRow) -> Rule:
    """InvalidValue if it has no times, or such that can't be read."""
    if not row.has_times:
        raise InvalidValue(
            f'the schedule "{row.name}" has no times: its kind is {row.schedule_kind}',
            hint=f"`accsd schedules show {row.name}` says what it does",
        )
    return row.timing().rule(settings_of(ctx).scheduler.spread)


def say_preview(rows: Sequence[PreviewRow], zone: Zone, now: datetime) -> None:
    lines = [words.preview_words(row, zone, now) for row in rows]
    columns = {"nominal": "nominal"}
    if any(row.due_at.replace(tzinfo=None) != _instant(row, zone) for row in rows):
        columns["due"] = "due"
    columns |= {"in": "in"} | ({"notes": "notes"} if any(row.marks for row in rows) else {})
    show(lines, columns, "table", empty="nothing is ahead")


def _instant(row: PreviewRow, zone: Zone) -> datetime:
    """When the nominal time is, as far as the wall clock alone says; a due time that differs is worth a column."""
    offset = row.nominal.replace(tzinfo=zone.info, fold=row.fold).utcoffset()
    return row.nominal if offset is None else row.nominal - offset
