"""`accsd audit`: who did what, when, by which way and why."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

import click
import orjson

from accsd.cli import times
from accsd.cli.output import output_option, show
from accsd.cli.session import with_database
from accsd.db.audit import AuditRow
from accsd.db.audit import audit as read_audit
from accsd.db.pool import Database
from accsd.db.views import jobs as job_views
from accsd.explain.words import cut

_COLUMNS: Final = ("id", "when", "actor", "via", "action", "target", "answer", "reason", "detail")
_LONGEST: Final = 60


@click.command()
@click.option("--since", "since_text", metavar="TIME", help="Only from then on: 2h, yesterday, 2026-11-01.")
@click.option("--actor", metavar="NAME", help="Only of this one.")
@click.option("--target", metavar="NAME", help="Only about this one: the id of a job, the name of a node, …")
@click.option(
    "--action", "actions", metavar="ACTION", multiple=True, help="Only these: cancel_jobs, pause, … Repeatable."
)
@click.option("--before", type=int, metavar="ID", help="Only earlier rows: for the next page.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=50, show_default=True, help="How many.")
@output_option()
@click.pass_context
def audit(
    ctx: click.Context,
    since_text: str | None,
    actor: str | None,
    target: str | None,
    actions: Sequence[str],
    before: int | None,
    limit: int,
    output: str,
) -> None:
    """List what people did and what was refused to them, the newest first, whether by command, over HTTP or in psql.
    What was done to schedules is in it. It is kept for 400 days.

    \b
    Examples:
      accsd audit --since yesterday
      accsd audit --target render-3
      accsd audit --actor ada@studio -o json
    """

    async def work(db: Database) -> list[AuditRow]:
        since = None if since_text is None else times.past(since_text, await job_views.clock(db))
        return await read_audit(
            db, actor=actor, target=target, actions=actions or None, since=since, before=before, limit=limit
        )

    found = with_database(ctx, work)
    rows = [_cells(row) if output == "table" else asdict(row) for row in found]
    show(rows, {name: name for name in _COLUMNS}, output, empty="nobody has done anything")


def _cells(row: AuditRow) -> dict[str, Any]:
    target = f"{row.kind} {row.target}" if row.target is not None else row.kind
    detail = "" if row.detail is None else orjson.dumps(row.detail).decode()
    return {
        "id": row.id,
        "when": row.ts,
        "actor": row.actor or "",
        "via": row.via,
        "action": row.action,
        "target": cut(target, _LONGEST),
        "answer": row.answer,
        "reason": cut(row.reason or "", _LONGEST),
        "detail": cut(detail, _LONGEST),
    }
