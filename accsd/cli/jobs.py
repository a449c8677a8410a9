"""`accsd jobs`: the newest jobs, filtered, and if wanted again and again."""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any, Final

import click

from accsd.cli import completing, moments
from accsd.cli.identifiers import short
from accsd.cli.output import Shown, duration, output_option, say, show, since
from accsd.cli.session import with_database
from accsd.db.pool import Database
from accsd.db.views import jobs as job_views
from accsd.db.views.jobs import JobFilter, JobRow
from accsd.model.state import JobStatus
from accsd.values.times import FarTime

_COLUMNS: Final = {
    "id": "id",
    "workflow": "workflow",
    "status": "status",
    "progress": "progress",
    "step": "step",
    "age": "age",
    "took": "took",
    "error": "error",
}
_LONGEST_ERROR: Final = 80
_HOME_AND_CLEAR: Final = Shown("\x1b[H\x1b[2J")


@click.command()
@click.option(
    "--status",
    "statuses",
    type=click.Choice([status.value for status in JobStatus]),
    multiple=True,
    help="Only in this state. Repeatable.",
)
@click.option("--workflow", shell_complete=completing.workflow_names, help="Only of this workflow, all versions.")
@click.option("--since", metavar="TIME", help="Only submitted since: 2h, today, 18:30, 2027-01-31.")
@click.option("--until", metavar="TIME", help="Only submitted until then, written in the same way.")
@click.option(
    "--service", shell_complete=completing.service_names, help="Only of workflows that have a step of this service."
)
@click.option(
    "--node", shell_complete=completing.node_names, help="Only with a task that is on this node, or was last there."
)
@click.option("--error-code", help="Only those that ended with this error.")
@click.option("--option", "pairs", metavar="KEY=VALUE", multiple=True, help="Only with this option. Repeatable.")
@click.option("--key", help="Only the one that was submitted with this idempotency key.")
@click.option("--by", help="Only those that this one submitted: user@host.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=20, show_default=True, help="How many.")
@click.option(
    "--scan",
    type=click.IntRange(min=1),
    default=job_views.SCAN,
    show_default=True,
    help="How many of the newest jobs a filter looks through. Queued and running ones are found beyond it too.",
)
@click.option("--watch", is_flag=True, help="Show it again and again until Ctrl-C.")
@click.option(
    "--every", type=moments.LENGTH, default="2s", show_default=True, metavar="TIME", help="How often --watch looks."
)
@output_option()
@click.pass_context
def jobs(
    ctx: click.Context,
    statuses: Sequence[str],
    workflow: str | None,
    since: str | None,
    until: str | None,
    service: str | None,
    node: str | None,
    error_code: str | None,
    pairs: Sequence[str],
    key: str | None,
    by: str | None,
    limit: int,
    scan: int,
    watch: bool,
    every: timedelta,
    output: str,
) -> None:
    """List jobs, newest first. Of several filters a job must pass all.

    \b
    Examples:
      accsd jobs --status error --since today
      accsd jobs --node gpu-1 --since yesterday --until today
      accsd jobs --error-code oom --option quality.crf=20
      accsd jobs --workflow media --watch
      accsd jobs --status running -o name | xargs -r accsd cancel
    """
    options = None
    if pairs:
        from accsd.cli.submit import merged

        options = merged(None, pairs, option="--option")

    async def work(db: Database) -> None:
        now = await job_views.clock(db)
        asked = JobFilter(
            statuses,
            workflow,
            since=None if since is None else moments.past(since, now),
            until=None if until is None else moments.past(until, now),
            service=service,
            node=node,
            error_code=error_code,
            key=key,
            by=by,
            options=options,
            limit=limit,
            scan=scan,
        )
        if not watch:
            await _list(db, asked, output)
            return
        while True:
            if output == "table" and sys.stdout.isatty():
                say(_HOME_AND_CLEAR, end="")
            await _list(db, asked, output)
            await asyncio.sleep(max(every.total_seconds(), 0.1))

    try:
        with_database(ctx, work)
    except KeyboardInterrupt:
        if not watch:
            raise


async def _list(db: Database, asked: JobFilter, output: str) -> None:
    found = await job_views.jobs(db, asked)
    rows = [cells(row) if output == "table" else asdict(row) for row in found]
    show(rows, _COLUMNS, output, empty="no such jobs" if asked.is_selective else "no jobs yet: `accsd submit WORKFLOW`")
    if asked.is_a_scan and len(found) < asked.limit and await job_views.has_more_than(db, asked.scan):
        say(
            f"only the newest {asked.scan} jobs were looked through: `--scan {10 * asked.scan}` looks further", err=True
        )


def cells(row: JobRow) -> dict[str, Any]:
    error = f"{row.error_code} {row.error_message or ''}".strip() if row.error_code else ""
    return {
        "id": short(row.id),
        "workflow": row.workflow,
        "status": _status(row),
        "progress": f"{row.progress:.0%}",
        "step": row.current_task_key if row.status == JobStatus.RUNNING else _due(row),
        "age": since(row.created_at) if row.age is None else duration(row.age),
        "took": row.took,
        "error": error if len(error) <= _LONGEST_ERROR else error[: _LONGEST_ERROR - 1] + "…",
    }


def _status(row: JobRow) -> str:
    """Of a paused workflow's job that has not ended: nothing new of it begins."""
    is_held = row.is_paused and row.status in (JobStatus.QUEUED, JobStatus.RUNNING)
    return f"{row.status} (paused)" if is_held else row.status


def _due(row: JobRow) -> str:
    """What a job that has not begun waits for."""
    if row.status != JobStatus.QUEUED or row.scheduled_at is None:
        return ""
    if isinstance(row.scheduled_at, FarTime) or row.age is None:
        return since(row.scheduled_at)
    left = row.scheduled_at - row.created_at - row.age
    return f"in {duration(left)}" if left > timedelta(0) else "due"
