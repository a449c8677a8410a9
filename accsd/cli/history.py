"""`accsd history`: what outlives the database. Months in the object store, and what leaves with time."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final
from uuid import UUID

import click

from accsd.cli import completion
from accsd.cli.archive import archived_lines
from accsd.cli.objects import objects, require_store
from accsd.cli.output import output_option, say, show
from accsd.cli.retention import orphans_command, prune_command
from accsd.cli.session import settings_of, with_database
from accsd.db.history import Archive, archives, archives_with, lines_here
from accsd.db.months import EVENTS, FIRINGS, MONTHLY, TASK_EVENTS, Monthly
from accsd.db.pool import Database
from accsd.db.views.schedules import schedule_named
from accsd.errors import AccsdError, ConfigError, NotFound
from accsd.explain.identifiers import job_named
from accsd.explain.months import months_here, state
from accsd.history.archive import ArchiveOutcome, archive, months_to_archive, verify
from accsd.history.clocks import require_same_time
from accsd.history.contents import broken_links
from accsd.values.units import shown_size

_COLUMNS: Final = ("month", "rows", "size", "state", "verified", "digest", "key")
_DIGEST_SHOWN: Final = 12


@click.group()
def history() -> None:
    """What outlives the database: months in the object store, and the retention of finished jobs."""


history.add_command(prune_command)
history.add_command(orphans_command)


@history.command("list")
@output_option()
@click.pass_context
def list_command(ctx: click.Context, output: str) -> None:
    """List the months of task events, ledger and events: where each is, and whether its archive was found well.

    \b
    Example: accsd history list
    """

    async def work(db: Database) -> tuple[list[str], list[Archive]]:
        return await months_here(db), await archives(db)

    here, archived = with_database(ctx, work)
    if output == "table":
        rows = [_cells(one) for one in archived]
        waiting = {one.partition for one in archived if one.dropped_at is None and one.superseded_at is None}
        rows += [{"month": name, "state": "in the database"} for name in here if name not in waiting]
        show(sorted(rows, key=lambda row: row["month"]), {name: name for name in _COLUMNS}, output)
    else:
        show([asdict(one) for one in archived], {}, output, name="partition")


def _cells(one: Archive) -> dict[str, Any]:
    return {
        "month": one.partition,
        "rows": one.rows,
        "size": shown_size(one.size_bytes),
        "state": state(one),
        "verified": one.verified_at,
        "digest": one.digest[:_DIGEST_SHOWN],
        "key": one.key,
    }


@history.command("archive")
@click.argument("months", nargs=-1, metavar="[MONTH]...")
@click.option("--again", is_flag=True, help="Write the archive anew, where the one in the store is damaged.")
@click.option("--keep", is_flag=True, help="Do not drop the months here.")
@click.pass_context
def archive_command(ctx: click.Context, months: Sequence[str], again: bool, keep: bool) -> None:
    """Archive months now: write them, read them back, drop them here.

    A MONTH is task_events_2026_05, firings_2026_05 (the ledger) or events_2026_05; 2026_05 is all three. Without one,
    all that are older than retention.events, retention.ledger and retention.topics. The builder does the same once an
    hour.

    \b
    Example: accsd history archive 2026_05 --again
    """
    settings = settings_of(ctx)

    async def work(db: Database) -> list[ArchiveOutcome]:
        if months:
            wanted = _named(months, await months_here(db))
        else:
            if not settings.retention.removes_months:
                raise ConfigError("all months are kept for ever", hint="set retention.events, or name the months")
            await require_same_time(db)
            wanted = await months_to_archive(db, settings.retention)
        require_store(settings)
        async with objects(settings) as store:
            return [await archive(db, store, month, again=again, keep=keep) for month in wanted]

    outcomes = with_database(ctx, work, removes_history=True)
    for outcome in outcomes:
        say(outcome.sentence)
    if not outcomes:
        say("nothing is old enough", err=True)
    refused = [outcome for outcome in outcomes if outcome.refused is not None]
    if refused:
        raise AccsdError(
            f"{len(refused)} of {len(outcomes)} months are not dropped",
            hint="--again writes an archive anew, where the one in the store is damaged",
        )


def _named(wanted: Sequence[str], here: Sequence[str]) -> list[str]:
    found: list[str] = []
    for month in wanted:
        meant = [name for name in here if name in {month, *(f"{table.name}_{month}" for table in MONTHLY)}]
        if not meant:
            raise NotFound(f"there is no month {month} in the database", hint="`accsd history list` lists the months")
        found += meant
    return found


@history.command("verify")
@click.option("--chain-only", is_flag=True, help="Only the chain of digests; no object is read.")
@click.pass_context
def verify_command(ctx: click.Context, chain_only: bool) -> None:
    """Read every archive back and compare it with its record; follow the chain of digests.

    The digest that is printed last covers all archives. Who notes it elsewhere can tell later that nothing before it
    was changed, neither in the store nor in the database.

    \b
    Example: accsd history verify
    """
    settings = settings_of(ctx)
    if not chain_only:
        require_store(settings)

    async def work(db: Database) -> tuple[list[Archive], list[str]]:
        found = await archives(db)
        problems = broken_links(found)
        wanted = [one for one in found if one.superseded_at is None]
        if wanted and not chain_only:
            async with objects(settings) as store:
                for one in wanted:
                    if (problem := await verify(db, store, one)) is not None:
                        problems.append(f"archive {one.id} ({one.partition}): {problem}")
        return found, problems

    found, problems = with_database(ctx, work, removes_history=True)
    for problem in problems:
        say(problem)
    if problems:
        raise AccsdError(f"{len(problems)} things are wrong with {len(found)} archives")
    say(f"{len(found)} archives are well; the last digest is {found[-1].digest if found else 'none'}")


@history.command("show")
@click.argument("job", required=False, shell_complete=completion.jobs)
@click.option("--schedule", metavar="SCHEDULE", help="The ledger of this schedule.")
@click.option("--topic", metavar="TOPIC", help="The events of this topic, without wildcards.")
@click.pass_context
def show_command(ctx: click.Context, job: str | None, schedule: str | None, topic: str | None) -> None:
    """Print a job's task events, a schedule's ledger or a topic's events as JSON lines, as they are archived.

    What has left the database comes first. The whole id of a job is understood after the job was removed.

    \b
    Examples:
      accsd history show 0199c0de-0000-7000-8000-3f9a21c4aa10
      accsd history show --schedule nightly
      accsd history show --topic orders.paid
    """
    settings = settings_of(ctx)
    if sum(each is not None for each in (job, schedule, topic)) != 1:
        raise click.UsageError("name one job, or one of --schedule and --topic")

    async def work(db: Database) -> list[str]:
        table, subject = await _subject(db, job, schedule, topic)
        here = await lines_here(db, table, subject)
        return await archived_lines(settings, await archives_with(db, table, subject), subject) + here

    for line in with_database(ctx, work):
        say(line)


async def _subject(db: Database, job: str | None, schedule: str | None, topic: str | None) -> tuple[Monthly, str]:
    if job is not None:
        return TASK_EVENTS, str(_whole_id(job) or await job_named(db, job))
    if schedule is not None:
        return FIRINGS, str((await schedule_named(db, schedule)).id)
    assert topic is not None, "one of the three was given"
    return EVENTS, topic


def _whole_id(text: str) -> UUID | None:
    try:
        return UUID(text) if len(text) == len(str(UUID(int=0))) else None
    except ValueError:
        return None
