"""`accsd cancel`: cancels jobs, and says one line for each."""

from collections.abc import Sequence
from uuid import UUID

import click

from accsd.cli import completion
from accsd.cli.changes import tell
from accsd.cli.output import output_option
from accsd.cli.session import operator, with_database
from accsd.db.answers import Answer
from accsd.db.cancel import cancel_jobs
from accsd.db.pool import Database
from accsd.errors import InvalidValue
from accsd.explain.changes import cancelled
from accsd.explain.identifiers import jobs_named


@click.command()
@click.argument("jobs", nargs=-1, metavar="JOB…", shell_complete=completion.jobs)
@click.option("--reason", help="Goes into the job's history.")
@output_option()
@click.pass_context
def cancel(ctx: click.Context, jobs: Sequence[str], reason: str | None, output: str) -> None:
    """Cancel jobs. Tasks that run are stopped; steps that are done stay done. JOB may be the beginning or the end of an
    id.

    \b
    Example: accsd cancel 3f9a21c4 --reason "wrong input"
    """
    if not jobs:
        raise InvalidValue(
            "no job was named", hint="`accsd jobs` lists them; in a pipe, `xargs -r` runs nothing for an empty list"
        )

    async def work(db: Database) -> dict[UUID, Answer]:
        return await cancel_jobs(db, await jobs_named(db, jobs), reason=reason, by=operator())

    tell((cancelled(answer) for answer in with_database(ctx, work).values()), output)
