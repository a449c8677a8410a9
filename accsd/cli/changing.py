"""`accsd cancel` and `accsd retry`: one line for each job, and in words what the state machine would not do."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import click

from accsd.cli import completing, moments
from accsd.cli.following import stay_with, tell_json, tell_line
from accsd.cli.identifiers import job_named, jobs_named, short
from accsd.cli.operator import operator
from accsd.cli.output import output_option, say, show
from accsd.cli.session import with_database
from accsd.cli.submit import end_like, interruptible, merged, output_by_name, pairs_option
from accsd.db.answers import Answer, Verdict
from accsd.db.cancel import cancel_jobs
from accsd.db.pool import Database
from accsd.db.retry import retry_jobs
from accsd.db.submit import rerun_job
from accsd.db.views import jobs as job_views
from accsd.errors import InvalidValue
from accsd.model import JobStatus
from accsd.values.names import ONE_OFF_SERVICE
from accsd.values.validation import did_you_mean

_REFUSED: Final = 1


@dataclass(frozen=True, slots=True)
class ChangeOutcome:
    """The answer for one row, for eyes and programs."""

    id: UUID | int
    answer: Verdict
    reason: str | None
    sentence: str
    next: str | None = None

    def row(self) -> dict[str, Any]:
        return {"id": self.id, "answer": self.answer, "reason": self.reason, "message": self.sentence}


def tell(outcomes: Iterable[ChangeOutcome], output: str) -> None:
    """Says all of them, then ends with exit code 1 if one was refused."""
    told = list(outcomes)
    if output == "table":
        for outcome in told:
            is_refused = outcome.answer is Verdict.REFUSED
            say(outcome.sentence, err=is_refused)
            if outcome.next:
                say(f"  → {outcome.next}", err=True)
    else:
        show([outcome.row() for outcome in told], {}, output)
    if any(outcome.answer is Verdict.REFUSED for outcome in told):
        raise SystemExit(_REFUSED)


@click.command()
@click.argument("jobs", nargs=-1, metavar="JOB…", shell_complete=completing.jobs)
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

    tell((_cancelled(answer) for answer in with_database(ctx, work).values()), output)


def _cancelled(answer: Answer) -> ChangeOutcome:
    named = short(answer.id)
    match answer.verdict:
        case Verdict.ACCEPTED:
            return ChangeOutcome(answer.id, answer.verdict, None, f"job {named} is cancelled")
        case Verdict.REPEATED:
            return ChangeOutcome(answer.id, answer.verdict, None, f"job {named} was cancelled before")
        case Verdict.REFUSED:
            said = f"job {named} can't be cancelled: it has ended already, as {answer.held.status}"
            return ChangeOutcome(answer.id, answer.verdict, answer.reason, said, f"accsd job {named}")


@click.command()
@click.argument("job_id", metavar="JOB", shell_complete=completing.jobs)
@click.option(
    "--from",
    "step",
    metavar="STEP",
    shell_complete=completing.steps,
    help="This step again and everything below it, also what had succeeded.",
)
@pairs_option
@click.option("--options", metavar="JSON", help="More options as a JSON object, or @FILE; -o goes before them.")
@click.option("--wait", is_flag=True, help="Stay until it has ended; exit code 1 unless it is done.")
@click.option("--follow", is_flag=True, help="The same, telling what happens.")
@click.option(
    "--timeout", type=moments.LENGTH, metavar="TIME", help="Stay no longer than this (exit code 5); the job goes on."
)
@output_by_name
@click.pass_context
def retry(
    ctx: click.Context,
    job_id: str,
    step: str | None,
    pairs: Sequence[str],
    options: str | None,
    wait: bool,
    follow: bool,
    timeout: timedelta | None,
    output: str,
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
    is_new = bool(pairs) or options is not None
    if is_new and step is not None:
        raise click.UsageError(
            "--from runs a step of the job as it was submitted, -o makes a new one: give one of them"
        )

    async def ask(db: Database) -> tuple[ChangeOutcome, datetime]:
        named = await job_named(db, job_id)
        asked_at = await job_views.clock(db)
        if any(task.service == ONE_OFF_SERVICE for task in await job_views.tasks_of(db, named)):
            return _never_again(named), asked_at
        if is_new:
            return await _run_anew(db, named, options, pairs), asked_at
        answer = (await retry_jobs(db, [named], from_step=step, by=operator()))[named]
        steps = list(await job_views.task_ids_of(db, named)) if answer.reason == "step_not_found" else []
        return _retried(answer, step, steps), asked_at

    async def stay(db: Database) -> job_views.JobRow:
        told = (tell_json if output in ("json", "jsonl") else tell_line) if follow else None
        return await stay_with(db, _job_of(outcome), patience=timeout, tell=told, since=asked_at)

    outcome, asked_at = with_database(ctx, ask)
    tell([outcome], output)
    if wait or follow:
        with interruptible():
            ended = with_database(ctx, stay)
        end_like(ended, output)


def _never_again(named: UUID) -> ChangeOutcome:
    said = f"job {short(named)} can't be retried: its command was in the memory of an `accsd run`"
    return ChangeOutcome(named, Verdict.REFUSED, "one_off", said, "accsd run -- CMD…")


async def _run_anew(db: Database, named: UUID, options: str | None, pairs: Sequence[str]) -> ChangeOutcome:
    earlier = await job_views.job(db, named)
    if not JobStatus(earlier.status).is_terminal:
        said = f"job {short(named)} can't be retried: it has not ended, it is {earlier.status}"
        hint = f"accsd cancel {short(named)}, or accsd submit {earlier.workflow}"
        return ChangeOutcome(named, Verdict.REFUSED, "not_in_expected_state", said, hint)
    made = await rerun_job(db, named, merged(options, pairs, earlier=earlier.options), created_by=operator())
    said = f"job {short(made)} runs in place of job {short(named)}, with other options"
    return ChangeOutcome(made, Verdict.ACCEPTED, None, said, f"accsd job {short(made)}")


def _job_of(outcome: ChangeOutcome) -> UUID:
    assert isinstance(outcome.id, UUID)
    return outcome.id


def _retried(answer: Answer, step: str | None, steps: Sequence[str]) -> ChangeOutcome:
    named = short(answer.id)
    where = f" from {step}" if step else ""
    if answer.verdict is Verdict.ACCEPTED:
        return ChangeOutcome(answer.id, answer.verdict, None, f"job {named} runs again{where}", f"accsd job {named}")
    if answer.verdict is Verdict.REPEATED:
        return ChangeOutcome(
            answer.id, answer.verdict, None, f"job {named} is running again already", f"accsd job {named}"
        )
    why, following = _why_not(answer, step, steps)
    return ChangeOutcome(
        answer.id, answer.verdict, answer.reason, f"job {named} can't be retried{where}: {why}", following
    )


def _why_not(answer: Answer, step: str | None, steps: Sequence[str]) -> tuple[str, str]:
    named = short(answer.id)
    look = f"accsd job {named}"
    match answer.reason:
        case "not_in_expected_state":
            return f"it has not ended, it is {answer.held.status}", f"accsd cancel {named}, or {look}"
        case "never_instantiated":
            return "it ended before it had any task", f"{look} says why; correct that and submit another one"
        case "nothing_to_retry":
            return "all of its steps have succeeded", f"accsd retry {named} --from STEP runs one of them again"
        case "step_not_found":
            return f'it has no step "{step}"{did_you_mean(step or "", steps)}', look
        case "earlier_step_unfinished":
            return f"a step that {step} depends on has not succeeded", f"accsd retry {named}, or --from an earlier step"
        case reason:
            return reason or "unknown", look
