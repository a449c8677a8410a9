"""`accsd retry`: a finished job once more, or a new one in its place with other options."""

from collections.abc import Sequence
from datetime import datetime
from typing import Unpack
from uuid import UUID

import click

from accsd.cli import completion
from accsd.cli.changes import reason_option, tell
from accsd.cli.options import merged, output_by_name, pairs_option
from accsd.cli.session import operator, with_database
from accsd.cli.timeline import StayOptions, end_like, interruptible, stay_options, stay_with, stays
from accsd.db.pool import Database
from accsd.db.retry import retry_jobs
from accsd.db.submit import rerun_job
from accsd.db.views import jobs as job_views
from accsd.explain.changes import ChangeOutcome, one_off_ended, rerun, rerun_too_early, retried
from accsd.explain.identifiers import job_named
from accsd.model.state import JobStatus
from accsd.values.names import ONE_OFF_SERVICE


@click.command()
@click.argument("job_id", metavar="JOB", shell_complete=completion.jobs)
@click.option(
    "--from",
    "step",
    metavar="STEP",
    shell_complete=completion.steps,
    help="This step again and everything below it, also what had succeeded.",
)
@pairs_option
@click.option("--options", metavar="JSON", help="More options as a JSON object, or @FILE; -o goes before them.")
@reason_option
@stay_options
@output_by_name
@click.pass_context
def retry(
    ctx: click.Context,
    job_id: str,
    step: str | None,
    pairs: Sequence[str],
    options: str | None,
    reason: str | None,
    output: str,
    **stay: Unpack[StayOptions],
) -> None:
    """Run a finished job again: what has not succeeded, or one step and everything below it.

    With other options it is a new job of the same workflow version, from its first step, whose options are those of JOB
    with these on top.

    \b
    Examples:
      accsd retry 3f9a21c4
      accsd retry 3f9a21c4 --from render --follow
      accsd retry 3f9a21c4 -o quality.crf=18 --follow
    """
    if (pairs or options is not None) and reason is not None:
        raise click.UsageError("--reason goes with a retry; -o makes a new job, which says itself what it is for")
    if (pairs or options is not None) and step is not None:
        raise click.UsageError(
            "--from runs a step of the job as it was submitted, -o makes a new one: give one of them"
        )

    async def ask(db: Database) -> tuple[ChangeOutcome, datetime]:
        named, asked_at = await job_named(db, job_id), await job_views.clock(db)
        return await _run(db, named, step, options, pairs, reason), asked_at

    outcome, asked_at = with_database(ctx, ask)
    tell([outcome], output)
    if stays(stay):
        with interruptible():
            ended = with_database(ctx, lambda db: stay_with(db, _job_of(outcome), stay, output, since=asked_at))
        end_like(ended, output)


async def _run(
    db: Database, job_id: UUID, step: str | None, options: str | None, pairs: Sequence[str], reason: str | None
) -> ChangeOutcome:
    if any(task.service == ONE_OFF_SERVICE for task in await job_views.tasks_of(db, job_id)):
        return one_off_ended(job_id)
    if pairs or options is not None:
        return await _run_anew(db, job_id, options, pairs)
    return await _run_again(db, job_id, step, reason)


async def _run_again(db: Database, job_id: UUID, step: str | None, reason: str | None) -> ChangeOutcome:
    answer = (await retry_jobs(db, [job_id], from_step=step, by=operator(), reason=reason))[job_id]
    steps = list(await job_views.task_ids_of(db, job_id)) if answer.reason == "step_not_found" else []
    return retried(answer, step, steps)


async def _run_anew(db: Database, job_id: UUID, options: str | None, pairs: Sequence[str]) -> ChangeOutcome:
    earlier = await job_views.job(db, job_id)
    if not JobStatus(earlier.status).is_terminal:
        return rerun_too_early(earlier)
    made = await rerun_job(db, job_id, merged(options, pairs, earlier=earlier.options), created_by=operator())
    return rerun(job_id, made)


def _job_of(outcome: ChangeOutcome) -> UUID:
    assert isinstance(outcome.id, UUID)
    return outcome.id
