"""`accsd submit`: one job of a workflow, and if wanted its end."""

import sys
from collections.abc import Sequence
from typing import Unpack
from uuid import UUID

import click

from accsd.cli import completion, times
from accsd.cli.options import merged, output_by_name, pairs_option
from accsd.cli.output import say, say_json
from accsd.cli.session import operator, with_database
from accsd.cli.timeline import StayOptions, end_like, interruptible, stay_options, stay_with, stays
from accsd.db.answers import Verdict
from accsd.db.pool import Database
from accsd.db.submit import Submission, Submitted, submit_jobs
from accsd.db.views import jobs as job_views
from accsd.db.views.workflows import no_such_workflow
from accsd.db.workflows import workflow_id
from accsd.errors import NotFound, VerbRefused
from accsd.explain.words import short


@click.command()
@click.argument("name", shell_complete=completion.workflow_names)
@pairs_option
@click.option(
    "--options", metavar="JSON", help="All options as a JSON object, or @FILE that holds one; -o goes before it."
)
@click.option("--version", type=click.IntRange(min=1), help="Another version than the newest active one.")
@click.option("--at", metavar="TIME", help='Not before: "in 10m", 18:30, 2027-01-31T06:00.')
@click.option(
    "--priority", type=click.IntRange(-(2**31), 2**31 - 1), default=0, show_default=True, help="Higher goes first."
)
@click.option("--key", help="Idempotency: the same key again is the same job.")
@click.option("--no-cache", is_flag=True, help="Run every step, although results of the same input are known.")
@stay_options
@output_by_name
@click.pass_context
def submit(
    ctx: click.Context,
    name: str,
    pairs: Sequence[str],
    options: str | None,
    version: int | None,
    at: str | None,
    priority: int,
    key: str | None,
    no_cache: bool,
    output: str,
    **stay: Unpack[StayOptions],
) -> None:
    """Submit a job of workflow NAME and print its id.

    Values of -o are JSON where they are valid JSON, text otherwise: frames=240 is a number, title=Hello is text.

    \b
    Examples:
      accsd submit media -o url=https://example.org/a.wav -o quality.crf=20
      accsd submit media --options @job.json --at "in 10m" --priority 5
      accsd submit media --key order-4711 --follow --timeout 1h
    """
    given = merged(options, pairs)
    if stay["timeout"] is not None and not stays(stay):
        raise click.UsageError("--timeout needs --wait or --follow")

    async def work(db: Database) -> job_views.JobRow | None:
        scheduled = None if at is None else times.future(at, await job_views.clock(db))
        wanted = Submission(await _workflow(db, name, version), given, priority, scheduled, key, no_cache=no_cache)
        submitted = _or_refused(name, (await submit_jobs(db, [wanted], created_by=operator()))[0])
        _say_submitted(submitted, output, stays=stays(stay))
        return await stay_with(db, _id_of(submitted), stay, output) if stays(stay) else None

    with interruptible():
        job = with_database(ctx, work)
    if job is not None:
        end_like(job, output)


async def _workflow(db: Database, name: str, version: int | None) -> UUID:
    try:
        return await workflow_id(db, name, version)
    except NotFound:
        raise await no_such_workflow(db, name, version) from None


def _or_refused(name: str, submitted: Submitted) -> Submitted:
    if submitted.job_id is None:
        raise VerbRefused(
            "submit",
            submitted.reason or "unknown",
            subject=f"workflow {name}",
            hint=f"try `accsd workflows show {name}`",
        )
    return submitted


def _id_of(submitted: Submitted) -> UUID:
    assert submitted.job_id is not None
    return submitted.job_id


def _say_submitted(submitted: Submitted, output: str, *, stays: bool) -> None:
    """Says the id at once, so that a person who interrupts the waiting knows it. stdout gets the id alone."""
    job_id = _id_of(submitted)
    if submitted.verdict is Verdict.REPEATED:
        say(f"this key was submitted before: job {short(job_id)} is {submitted.status}", err=True)
    if output in ("json", "jsonl"):
        if not stays:
            row = {"id": job_id, "status": submitted.status, "repeated": submitted.verdict is Verdict.REPEATED}
            say_json(row)
        return
    say(str(job_id))
    if output == "table" and sys.stdout.isatty() and not stays:
        say(f"  → accsd job {short(job_id)}\n  → accsd logs -f {short(job_id)}", err=True)
