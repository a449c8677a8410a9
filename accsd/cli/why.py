"""`accsd why`: a wait always has a reason. Every blocker, since when, and what to try."""

from datetime import timedelta
from uuid import UUID

import click

from accsd.cli import completion
from accsd.cli.output import output_option, say, show, styled
from accsd.cli.session import settings_of, with_database
from accsd.db.pool import Database
from accsd.errors import NotFound
from accsd.explain.identifiers import job_named, task_named
from accsd.explain.why import Explanation, document, why_job, why_task
from accsd.explain.words import duration, short


@click.command()
@click.argument("subject", metavar="JOB|TASK", shell_complete=completion.jobs_and_steps)
@output_option()
@click.pass_context
def why(ctx: click.Context, subject: str, output: str) -> None:
    """Say why a job or a task does not run: every blocker, since when, and what to try next.

    Of a job, the tasks that are next are explained; the first is the one on which the most depends. A task is named by
    its id, or as JOB/STEP.

    \b
    accsd why 3f2a91bc
    accsd why 3f2a91bc/render
    """
    silent = settings_of(ctx).lease
    explained = with_database(ctx, lambda db: _explain(db, subject, silent))
    if output == "table":
        for each in explained:
            _tell(each)
    else:
        show(document(explained), {}, output, name="blocker")


async def _explain(db: Database, subject: str, silent: timedelta) -> list[Explanation]:
    if "/" in subject:
        return [await why_task(db, await task_named(db, subject), silent)]
    try:
        job_id = await job_named(db, subject)
    except NotFound:
        return [await why_task(db, await _task_or_nothing(db, subject), silent)]
    return await why_job(db, job_id, silent)


async def _task_or_nothing(db: Database, subject: str) -> UUID:
    try:
        return await task_named(db, subject)
    except NotFound:
        raise NotFound(
            f'no job or task has an id like "{subject}"', hint="`accsd jobs` lists the newest jobs"
        ) from None


def _tell(each: Explanation) -> None:
    name = short(each.job_id) + (f"/{each.step}" if each.step else "")
    say(styled(f"{'job' if each.step is None else 'task'} {name}", bold=True))
    for found, why in each.told():
        for_how_long = f"  [{duration(found.waited)}]" if found.waited is not None else ""
        say(f"  {why.text}{for_how_long}")
        if why.advice:
            say(f"    → {why.advice}")
