"""`accsd history prune` and `orphans`: what is removed with time, and what nobody knows any more."""

from dataclasses import asdict
from typing import Final

import click

from accsd.cli.objects import objects, require_store
from accsd.cli.output import output_option, say, show
from accsd.cli.session import settings_of, with_database
from accsd.db.history import Removed
from accsd.db.pool import Database
from accsd.errors import ConfigError
from accsd.history.clocks import require_same_time
from accsd.history.orphans import Orphan, orphans
from accsd.history.prune import prune_jobs, remove_doomed
from accsd.values.units import shown_size

_REMOVED: Final = ("workflow", "jobs", "tasks", "artifacts", "size", "kept")
_ORPHANS: Final = ("key", "size", "modified", "job")


@click.command("prune")
@click.option("--dry-run", is_flag=True, help="Only count what would be removed.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@output_option()
@click.pass_context
def prune_command(ctx: click.Context, dry_run: bool, yes: bool, output: str) -> None:
    """Remove finished jobs that are older than the retention, with their tasks, dead letters, artifacts and objects.

    retention.jobs says how old, retention.workflows.NAME.jobs for one workflow. A job with an open dead letter or an
    undelivered outgoing event is kept. The builder does the same once an hour.

    \b
    Example: accsd history prune --dry-run
    """
    settings = settings_of(ctx)
    if not settings.retention.removes_jobs:
        raise ConfigError("jobs are kept for ever", hint="set retention.jobs, or retention.workflows.NAME.jobs")
    if not dry_run:
        require_store(settings)

    async def count(db: Database) -> list[Removed]:
        return await prune_jobs(db, settings.retention, dry_run=True)

    async def remove(db: Database) -> tuple[list[Removed], int]:
        await require_same_time(db)
        gone = await prune_jobs(db, settings.retention)
        async with objects(settings) as store:
            return gone, await remove_doomed(db, store)

    if dry_run or not yes:
        found = with_database(ctx, count, removes_history=True)
        _show_removed(found, output)
        if dry_run or not any(one.jobs for one in found):
            return
        click.confirm("Remove them?", abort=True, err=True)
    gone, removed = with_database(ctx, remove, removes_history=True)
    if yes:
        _show_removed(gone, output)
    say(f"removed {sum(one.jobs for one in gone)} jobs and {removed} objects", err=True)


def _show_removed(found: list[Removed], output: str) -> None:
    rows = [asdict(one) | {"size": shown_size(one.bytes)} for one in found]
    show(rows, {name: name for name in _REMOVED}, output, name="workflow", empty="nothing is old enough")


@click.command("orphans")
@click.option("--remove", is_flag=True, help="Remove those of jobs that this database knows.")
@click.option("--foreign", is_flag=True, help="With --remove: those of jobs that it does not know, too.")
@output_option()
@click.pass_context
def orphans_command(ctx: click.Context, remove: bool, foreign: bool, output: str) -> None:
    """List objects in the store that no row knows, older than a day.

    An object of an unknown job may belong to another database that shares the bucket: --foreign is for those who are
    sure that none does.

    \b
    Example: accsd history orphans
    """
    if foreign and not remove:
        raise click.UsageError("--foreign goes with --remove")
    settings = settings_of(ctx)

    async def work(db: Database) -> list[Orphan]:
        found: list[Orphan] = []
        async with objects(settings) as store:
            async for orphan in orphans(db, store):
                found.append(orphan)
                if remove and (foreign or orphan.is_of_known_job):
                    await store.delete(orphan.key)
        return found

    found = with_database(ctx, work)
    rows = [
        asdict(one) | {"size": shown_size(one.size_bytes), "job": "known" if one.is_of_known_job else "unknown"}
        for one in found
    ]
    show(rows, {name: name for name in _ORPHANS}, output, name="key", empty="every object has its row")
    if remove:
        removed = [one for one in found if foreign or one.is_of_known_job]
        say(f"removed {len(removed)} of {len(found)}", err=True)
