"""`accsd dead`: tasks that failed for good, until somebody sends them back to work or dismisses them."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import Any, Final

import click

from accsd.cli import completion
from accsd.cli.changes import reason_option, tell
from accsd.cli.output import output_option, say, show
from accsd.cli.session import operator, with_database
from accsd.db.pool import Database
from accsd.db.retry import DeadLetterAnswer, dismiss, redrive
from accsd.db.views import jobs as job_views
from accsd.db.views.jobs import DeadLetterRow
from accsd.errors import NotFound
from accsd.explain.changes import settled
from accsd.explain.jobs import dead_because
from accsd.explain.words import cut, short

_MOST_AT_ONCE: Final = 10_000
_LONGEST_ERROR: Final = 70
_COLUMNS: Final = ("id", "job", "workflow", "step", "service", "reason", "error", "age")

Verb = Callable[[Database, Sequence[int]], Awaitable[list[DeadLetterAnswer]]]


@click.group()
def dead() -> None:
    """Tasks that failed for good: list them, send them back to work, or dismiss them."""


@dead.command("list")
@click.option("--service", shell_complete=completion.service_names, help="Only of this service.")
@click.option("--all", "settled", is_flag=True, help="Those that were retried or dismissed too.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=50, show_default=True, help="How many.")
@output_option()
@click.pass_context
def list_command(ctx: click.Context, service: str | None, settled: bool, limit: int, output: str) -> None:
    """List dead letters, newest first.

    \b
    Example: accsd dead list --service renderer
    """
    found = with_database(ctx, lambda db: job_views.dead_letters(db, service=service, settled=settled, limit=limit))
    rows = [_cells(row) if output == "table" else asdict(row) for row in found]
    columns = {name: name for name in (*_COLUMNS, "state")[: len(_COLUMNS) + settled]}
    show(rows, columns, output, empty="nothing is dead")
    if rows and output == "table" and not settled:
        say("  → accsd dead retry ID…, or accsd dead dismiss ID…", err=True)


def _cells(row: DeadLetterRow) -> dict[str, Any]:
    error = " ".join(part for part in (row.error_code, row.error_message) if part)
    return {
        "id": row.id,
        "job": short(row.job_id),
        "workflow": row.workflow,
        "step": row.task_key,
        "service": row.service,
        "reason": dead_because(row),
        "error": cut(error, _LONGEST_ERROR),
        "age": row.age,
        "state": "retried" if row.redriven_at else "dismissed" if row.dismissed_at else "open",
    }


@dead.command("retry")
@click.argument("ids", nargs=-1, type=int, metavar="ID…")
@click.option("--all", "everything", is_flag=True, help="All that are open.")
@click.option("--service", shell_complete=completion.service_names, help="With --all: only of this service.")
@reason_option
@output_option()
@click.pass_context
def retry_command(
    ctx: click.Context, ids: Sequence[int], everything: bool, service: str | None, reason: str | None, output: str
) -> None:
    """Send dead letters back to work, with the steps that were skipped because of them.

    The ids are those of `accsd dead list`.

    \b
    Examples:
      accsd dead retry 17 18
      accsd dead retry --all --service renderer
    """

    async def verb(db: Database, wanted: Sequence[int]) -> list[DeadLetterAnswer]:
        return await redrive(db, wanted, by=operator(), reason=reason)

    _change(ctx, verb, ids, everything=everything, service=service, output=output, done="goes back to work")


@dead.command("dismiss")
@click.argument("ids", nargs=-1, type=int, metavar="ID…")
@click.option("--all", "everything", is_flag=True, help="All that are open.")
@click.option("--service", shell_complete=completion.service_names, help="With --all: only of this service.")
@reason_option
@output_option()
@click.pass_context
def dismiss_command(
    ctx: click.Context, ids: Sequence[int], everything: bool, service: str | None, reason: str | None, output: str
) -> None:
    """Take dead letters off the list: nobody will do anything about them. Their jobs stay as they are.

    \b
    Example: accsd dead dismiss 17 --reason "the input was wrong"
    """

    async def verb(db: Database, wanted: Sequence[int]) -> list[DeadLetterAnswer]:
        return await dismiss(db, wanted, by=operator(), reason=reason)

    _change(ctx, verb, ids, everything=everything, service=service, output=output, done="is dismissed")


def _change(
    ctx: click.Context, verb: Verb, ids: Sequence[int], *, everything: bool, service: str | None, output: str, done: str
) -> None:
    if bool(ids) == everything:
        raise click.UsageError("name the ids of `accsd dead list`, or say --all")
    if service is not None and not everything:
        raise click.UsageError("--service goes with --all")

    async def work(db: Database) -> list[DeadLetterAnswer]:
        found = await job_views.dead_letters(db, service=service, limit=_MOST_AT_ONCE) if everything else []
        return await verb(db, list(dict.fromkeys(ids)) or [row.id for row in found])

    answers = with_database(ctx, work)
    if answers and all(answer.reason == "not_found" for answer in answers):
        missing = ", ".join(str(answer.dead_letter_id) for answer in answers)
        raise NotFound(f"there is no dead letter {missing}", hint="try `accsd dead list`")
    if not answers:
        say("nothing is dead", err=True)
    tell((settled(answer, done) for answer in sorted(answers, key=lambda one: one.dead_letter_id)), output)
