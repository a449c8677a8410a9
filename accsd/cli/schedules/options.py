"""What commands about schedules share: the options that say when and how, what they mean as fields of a definition, the
rule of a schedule, tables of times."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import click

from accsd.cli import completion, times
from accsd.cli.conditions import value_of
from accsd.cli.options import merged
from accsd.cli.output import say, show
from accsd.cli.session import settings_of
from accsd.db.views.schedules import ScheduleRow
from accsd.errors import InvalidValue
from accsd.explain import occurrences
from accsd.explain.occurrences import preview_words, warning_words
from accsd.planning.recurrence import LintWarning, PreviewRow, Rule, Zone

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

_INT: Final = click.IntRange(-(2**31), 2**31 - 1)

_TIMING: Final[Sequence[Decorator]] = (
    click.option("--cron", metavar="EXPR", help="Five fields, or six with seconds first; @daily and such; H."),
    click.option("--rrule", metavar="RULE", help="A rule of RFC 5545: FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=17."),
    click.option(
        *("--every", "--interval", "every"),
        metavar="TIME",
        help="In real time: 90m, 1h30m, PT90M. Of a condition: how often it is measured.",
    ),
    click.option("--at", "--once", "at", metavar="TIME", help="Once: 2027-01-31T06:00, local or with an offset."),
    click.option("--timezone", metavar="ZONE", help="An IANA name, such as Europe/Berlin.  [default: UTC]"),
    click.option("--spread", type=times.LENGTH, metavar="TIME", help="Its share of this time later than it says."),
    click.option("--exclude", multiple=True, metavar="CALENDAR", help="Not on the days of it. Repeatable."),
    click.option("--only-on", multiple=True, metavar="CALENDAR", help="Only on the days of it. Repeatable."),
    click.option("--start", "start_at", metavar="TIME", help="Nothing before."),
    click.option("--end", "end_at", metavar="TIME", help="Nothing at that time, or after."),
)
_EVENTS: Final[Sequence[Decorator]] = (
    click.option("--event", metavar="TOPIC", help="For each event of it; the last segment may be * or **."),
    click.option("--filter", metavar="EXPR", help="Only events where this is true: event.payload.total > 100."),
    click.option("--gather-by", metavar="EXPR", help="One run for events with the same value of it."),
    click.option("--gather-quiet", metavar="TIME", help="One run for many events: when none came for so long,"),
    click.option("--gather-at-most", metavar="TIME", help="or so long after the first,"),
    click.option("--gather-size", type=click.IntRange(min=1), help="or with so many."),
    click.option(
        "--cooldown", type=times.LENGTH, metavar="TIME", help="No run so soon after one. Also of a condition."
    ),
    click.option(
        "--trailing/--no-trailing", "cooldown_trailing", default=None, help="But one run at the cooldown's end."
    ),
    click.option("--reenter/--no-reenter", default=None, help="Also for events that its own runs lead to."),
)
_CONDITION: Final[Sequence[Decorator]] = (
    click.option(
        "--condition", metavar="NAME", help="When a value crosses a threshold.  [default: the schedule's name]"
    ),
    click.option("--above", type=float, metavar="N", help="Raised above this,"),
    click.option("--below", type=float, metavar="N", help="or below this,"),
    click.option("--is", "equals", metavar="VALUE", help="or at this: true, false or a number."),
    click.option("--clear-below", type=float, metavar="N", help="With --above: clear only below this."),
    click.option("--clear-above", type=float, metavar="N", help="With --below: clear only above this."),
    click.option("--samples", type=click.IntRange(1, 100), help="So many in a row raise it.  [default: 1]"),
    click.option("--clear-samples", type=click.IntRange(1, 100), help="So many in a row clear it.  [default: 1]"),
    click.option("--for", "lasts", metavar="TIME", help="Raised after so long."),
    click.option("--repeat", metavar="TIME", help="Again after so long while it is raised."),
    click.option("--stale", metavar="TIME", help="Unknown without a value for so long.  [default: 3 × --every]"),
    click.option(
        "--on-unknown", type=click.Choice(["keep", "raise", "clear"]), help="What unknown means.  [default: keep]"
    ),
    click.option("--fire-initially/--no-fire-initially", default=None, help="The first sample may raise it."),
    click.option("--sql", metavar="STATEMENT", help="Measured by a statement: one row, one column."),
    click.option(
        "--http", metavar="URL", help="Measured by an answer in JSON; its address must be allowed ([probes])."
    ),
    click.option("--path", metavar="A.B", help="Where the value is in that answer."),
    click.option("--builtin", metavar="WHAT[=OF]", help="Measured by accsd: waiting=SERVICE, oldest_wait=SERVICE, …"),
    click.option("--silence", metavar="TOPIC", help="Measured in seconds since the last event of it."),
    click.option("--expr", metavar="EXPR", help="Makes a value of what was measured: value.used / value.of."),
)
_GATHER: Final = {"gather_by": "by", "gather_quiet": "quiet", "gather_at_most": "at_most", "gather_size": "size"}
_JUDGEMENT: Final = {  # parameter → member of a condition
    **{name: name for name in ("above", "below", "clear_below", "clear_above", "samples", "clear_samples", "repeat")},
    **{name: name for name in ("stale", "on_unknown", "fire_initially", "expr")},
    "equals": "is",
    "lasts": "for",
}
_SOURCES: Final = ("sql", "http", "builtin", "silence")
_ASSEMBLED: Final = frozenset({*_GATHER, *_JUDGEMENT, *_SOURCES, "equals", "condition", "path", "pairs", "document"})
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
        help="An option of its jobs; a.b=1 makes {a: {b: 1}}; ${nominal} is the time, ${event.payload.x} of an event. "
        "Repeatable.",
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
dry_run_option: Final = click.option("--dry-run", is_flag=True, help="Check it and say what would be; write nothing.")
why_option: Final = click.option("--reason", help="Why, for those who wonder.")


def _all(options: Sequence[Decorator]) -> Decorator:
    def decorated(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorated


timing_options: Final = _all([*_TIMING, *_EVENTS, *_CONDITION])
definition_options: Final = _all([workflow_option, *_TIMING, *_EVENTS, *_CONDITION, *_POLICIES])


def written(given: Mapping[str, Any], row: ScheduleRow | None = None) -> dict[str, Any]:
    """What was typed, as fields of a definition. Options, gathering and condition are put on top of those that the
    schedule has."""
    typed = {key: value for key, value in given.items() if value not in (None, ())}
    fields = {key: value for key, value in typed.items() if key not in _ASSEMBLED}
    fields |= {key: list(fields[key]) for key in ("exclude", "only_on") if key in fields}
    if "pairs" in typed or "document" in typed:
        kept = None if row is None or "document" in typed else row.options
        fields["options"] = merged(typed.get("document"), typed.get("pairs", ()), option="-O", earlier=kept)
    if windows := {member: typed[key] for key, member in _GATHER.items() if key in typed}:
        fields["gather"] = {**((row and row.gather) or {}), **windows}
    if condition := _condition(typed, row):
        fields.pop("every", None)
        fields["condition"] = condition
    return fields


def _condition(typed: Mapping[str, Any], row: ScheduleRow | None) -> dict[str, Any] | None:
    """The document of a condition; --every belongs to it where there is one."""
    members = {member: _plain(typed[key]) for key, member in _JUDGEMENT.items() if key in typed}
    members |= {"is": value_of(typed["equals"])} if "equals" in typed else {}
    members |= {"name": typed["condition"]} if "condition" in typed else {}
    members |= {"source": _source(typed)} if typed.keys() & {*_SOURCES, "path"} else {}
    was = {"name": row.schedule_expr, **(row.condition or {})} if row and row.schedule_kind == "condition" else None
    if not members and (was is None or "every" not in typed):
        return None
    members |= {"every": typed["every"]} if "every" in typed else {}
    thresholds = {"above", "below", "is"}
    if members.keys() & thresholds:
        was = {key: value for key, value in (was or {}).items() if key not in thresholds}
    return {**(was or {}), **members}


def _plain(value: Any) -> Any:
    """90 instead of 90.0, as people write it."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _source(typed: Mapping[str, Any]) -> dict[str, Any]:
    named = [kind for kind in _SOURCES if kind in typed]
    if len(named) != 1 or ("path" in typed and named != ["http"]):
        said = "--path leads through the answer of --http" if "path" in typed else "a condition has one source"
        raise InvalidValue(said, hint=f"give one of {', '.join(f'--{kind}' for kind in _SOURCES)}, or none: reported")
    (kind,) = named
    if kind == "http":
        return {kind: {"url": typed[kind], **({"path": typed["path"]} if "path" in typed else {})}}
    if kind == "builtin":
        measure, _, about = typed[kind].partition("=")
        return {kind: {measure: about or None}}
    return {kind: typed[kind]}


def rule_of(ctx: click.Context, row: ScheduleRow) -> Rule:
    """InvalidValue if it has no times, or such that can't be read."""
    return occurrences.rule_of(row, settings_of(ctx).scheduler.spread)


def say_preview(rows: Sequence[PreviewRow], zone: Zone, now: datetime) -> None:
    lines = [preview_words(row, zone, now) for row in rows]
    columns = {"nominal": "nominal"}
    if any(row.due_at.replace(tzinfo=None) != _instant(row, zone) for row in rows):
        columns["due"] = "due"
    columns |= {"in": "in"} | ({"notes": "notes"} if any(row.marks for row in rows) else {})
    show(lines, columns, "table", empty="nothing is ahead")


def _instant(row: PreviewRow, zone: Zone) -> datetime:
    """When the nominal time is, as far as the wall clock alone says; a due time that differs is worth a column."""
    offset = row.nominal.replace(tzinfo=zone.info, fold=row.fold).utcoffset()
    return row.nominal if offset is None else row.nominal - offset


def warn(warnings: Sequence[LintWarning]) -> None:
    for warning in warnings:
        say(f"warning: {warning_words(warning)}", err=True)
