"""`accsd jobs`: lists the newest jobs, filtered; with --watch again and again."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, replace
from datetime import timedelta
from functools import partial
from typing import Any, Final

import click

from accsd.cli import completion, times
from accsd.cli.options import merged
from accsd.cli.output import Shown, output_option, say, show, since
from accsd.cli.session import with_database
from accsd.db.pool import Database
from accsd.db.views import jobs as job_views
from accsd.db.views.job_list import BUDGET, JobFilter, PageBudget, list_jobs
from accsd.db.views.jobs import JobRow
from accsd.explain.jobs import job_due, job_state
from accsd.explain.words import cut, duration, short
from accsd.model.state import JobStatus

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
_PATIENCE_SEC: Final = 60.0
_HOME_AND_CLEAR: Final = Shown("\x1b[H\x1b[2J")


@click.command()
@click.option(
    "--status",
    "statuses",
    type=click.Choice([status.value for status in JobStatus]),
    multiple=True,
    help="Only in this state. Repeatable.",
)
@click.option("--workflow", shell_complete=completion.workflow_names, help="Only of this workflow, all versions.")
@click.option("--since", metavar="TIME", help="Only submitted since: 2h, today, 18:30, 2027-01-31.")
@click.option("--until", metavar="TIME", help="Only submitted until then, written in the same way.")
@click.option(
    "--service", shell_complete=completion.service_names, help="Only of workflows that have a step of this service."
)
@click.option(
    "--node", shell_complete=completion.node_names, help="Only with a task that is on this node, or was last there."
)
@click.option("--error-code", help="Only those that ended with this error.")
@click.option("--option", "pairs", metavar="KEY=VALUE", multiple=True, help="Only with this option. Repeatable.")
@click.option("--key", help="Only the one that was submitted with this idempotency key.")
@click.option("--by", help="Only those that this one submitted: user@host.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=20, show_default=True, help="How many.")
@click.option(
    "--scan",
    type=click.IntRange(min=1),
    default=BUDGET.rows,
    show_default=True,
    help="How many of the newest jobs a filter looks through. Queued and running ones are found beyond it too.",
)
@click.option("--watch", is_flag=True, help="Show it again and again until Ctrl-C.")
@click.option(
    "--every", type=times.LENGTH, default="2s", show_default=True, metavar="TIME", help="How often --watch looks."
)
@output_option()
@click.pass_context
def jobs(
    ctx: click.Context,
    since: str | None,
    until: str | None,
    pairs: Sequence[str],
    watch: bool,
    every: timedelta,
    output: str,
    limit: int,
    scan: int,
    **asked: Any,
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
    wanted = JobFilter(**asked, options=merged(None, pairs, option="--option") if pairs else None)

    async def work(db: Database) -> None:
        now = await job_views.clock(db)
        since_then = None if since is None else times.past(since, now)
        until_then = None if until is None else times.past(until, now)
        found = replace(wanted, since=since_then, until=until_then)
        listed = partial(_list, db, found, output, limit=limit, scan=scan)
        await (_watch(listed, output, every) if watch else listed())

    try:
        with_database(ctx, work)
    except KeyboardInterrupt:
        if not watch:
            raise


async def _watch(listed: Callable[[], Awaitable[None]], output: str, every: timedelta) -> None:
    while True:
        if output == "table" and sys.stdout.isatty():
            say(_HOME_AND_CLEAR, end="")
        await listed()
        await asyncio.sleep(max(every.total_seconds(), 0.1))


async def _list(db: Database, asked: JobFilter, output: str, *, limit: int, scan: int) -> None:
    found = await list_jobs(db, asked, limit=limit, budget=PageBudget(rows=scan, seconds=None, statement=_PATIENCE_SEC))
    rows = [cells(row) if output == "table" else asdict(row) for row in found.rows]
    show(rows, _COLUMNS, output, empty="no such jobs" if asked.is_selective else "no jobs yet: `accsd submit WORKFLOW`")
    if asked.is_selective and not found.scan.complete:
        say(f"only the newest {scan} jobs were looked through: `--scan {10 * scan}` looks further", err=True)


def cells(row: JobRow) -> dict[str, Any]:
    error = f"{row.error_code} {row.error_message or ''}".strip() if row.error_code else ""
    return {
        "id": short(row.id),
        "workflow": row.workflow,
        "status": job_state(row),
        "progress": f"{row.progress:.0%}",
        "step": row.current_task_key if row.status == JobStatus.RUNNING else job_due(row),
        "age": since(row.created_at) if row.age is None else duration(row.age),
        "took": row.took,
        "error": cut(error, _LONGEST_ERROR),
    }
