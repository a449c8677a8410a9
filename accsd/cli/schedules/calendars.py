"""`accsd schedules calendars`: days on which schedules do not fire, or on which alone they do."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from accsd.cli import completion
from accsd.cli.output import output_option, say, show
from accsd.cli.session import operator, with_database
from accsd.db.answers import Verdict
from accsd.db.calendars import calendars, put_calendar, remove_calendar
from accsd.db.pool import Database
from accsd.errors import InvalidValue, NotFound
from accsd.planning.recurrence import Calendar, calendar_from_ics, calendar_from_list, zone_rules
from accsd.values.validation import did_you_mean


@click.group("calendars")
def calendars_group() -> None:
    """Calendars of days, for --exclude and --only-on of schedules."""


@calendars_group.command("list")
@output_option()
@click.pass_context
def list_command(ctx: click.Context, output: str) -> None:
    """List the calendars, and which schedules name each."""
    found = with_database(ctx, calendars)
    rows = [asdict(row) for row in found]
    if output == "table":
        rows = [row | {"entries": len(row["entries"]), "schedules": ", ".join(row["schedules"])} for row in rows]
    columns = {"name": "name", "entries": "entries", "updated_at": "updated", "created_by": "by"}
    empty = "no calendars yet: `accsd schedules calendars import FILE` brings one in"
    show(rows, columns | {"schedules": "schedules"}, output, name="name", empty=empty)


@calendars_group.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--name", help="[default: the name of the file, without its ending]")
@click.option("--timezone", metavar="ZONE", help="Whose days they are. [default: those of each schedule's own zone]")
@output_option()
@click.pass_context
def import_command(ctx: click.Context, file: str, name: str | None, timezone: str | None, output: str) -> None:
    """Write the days of a file into a calendar, instead of those that it has; its schedules are planned anew.

    The file is iCalendar (.ics), or text with a day or a span of days on each line:

    \b
      2026-12-25 Christmas
      2026-12-24/2026-12-26 Christmas
      # a comment
    """
    called = name or Path(file).stem
    calendar = _read(Path(file), called, timezone)
    entries = [
        {"from": entry.first.isoformat(), "to": entry.last.isoformat(), "label": entry.label}
        for entry in calendar.entries
    ]

    async def work(db: Database) -> Verdict:
        return await put_calendar(db, called, entries, timezone=timezone, created_by=operator())

    verdict = with_database(ctx, work)
    if output == "table":
        what = "is unchanged" if verdict is Verdict.REPEATED else f"has {len(entries)} entries now"
        say(f"calendar {called} {what}")
    else:
        show([{"name": called, "answer": verdict, "entries": entries}], {}, output, name="name")


def _read(path: Path, name: str, timezone: str | None) -> Calendar:
    zone = None if timezone is None else zone_rules().zone(timezone)
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidValue(f"{path} can't be read: {error}") from error
    if "BEGIN:VCALENDAR" in text.upper():
        return calendar_from_ics(name, text, zone)
    lines = [line.strip() for line in text.splitlines()]
    written = [line for line in lines if line and not line.startswith("#")]
    if not written:
        raise InvalidValue(f"{path} has no days", hint="write one on each line: 2026-12-25 Christmas")
    return calendar_from_list(name, written)


@calendars_group.command("remove")
@click.argument("name", shell_complete=completion.calendar_names)
@output_option()
@click.pass_context
def remove_command(ctx: click.Context, name: str, output: str) -> None:
    """Remove a calendar that no schedule names any more."""

    async def work(db: Database) -> None:
        known = {row.name: row for row in await calendars(db)}
        if name not in known:
            raise NotFound(
                f'there is no calendar "{name}"{did_you_mean(name, known)}',
                hint="`accsd schedules calendars list` shows them",
            )
        if used := known[name].schedules:
            raise InvalidValue(
                f"the calendar {name} is in use: {', '.join(used[:5])}",
                hint="`accsd schedules edit NAME --unset exclude` takes it away",
            )
        await remove_calendar(db, name)

    with_database(ctx, work)
    removed: dict[str, Any] = {"name": name, "answer": "accepted"}
    if output == "table":
        say(f"calendar {name} is removed")
    else:
        show([removed], {}, output, name="name")
