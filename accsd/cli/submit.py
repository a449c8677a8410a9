"""`accsd submit`: one job of a workflow, and if wanted its end."""

import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, cast
from uuid import UUID

import click
import orjson

from accsd.cli import completing, moments
from accsd.cli.following import stay_with, tell_json, tell_line
from accsd.cli.identifiers import short
from accsd.cli.operator import operator
from accsd.cli.output import FORMATS, duration, say, say_json, styled
from accsd.cli.session import with_database
from accsd.db.answers import Verdict
from accsd.db.pool import Database
from accsd.db.submit import Submission, Submitted, submit_jobs
from accsd.db.views import jobs as job_views
from accsd.db.views.workflows import no_such_workflow
from accsd.db.workflows import workflow_id
from accsd.errors import InvalidValue, NotFound, VerbRefused
from accsd.model import JobStatus

_DONE: Final = JobStatus.DONE
_INTERRUPTED: Final = 130


pairs_option: Final = click.option(
    "-o", "pairs", metavar="KEY=VALUE", multiple=True, help="An option of the job; a.b=1 makes {a: {b: 1}}. Repeatable."
)
# Where -o is an option of the job
output_by_name: Final = click.option("--output", type=click.Choice(FORMATS), default="table", show_default=True)


@click.command()
@click.argument("name", shell_complete=completing.workflow_names)
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
@click.option("--wait", is_flag=True, help="Stay until it has ended; exit code 1 unless it is done.")
@click.option("--follow", is_flag=True, help="The same, telling what happens.")
@click.option(
    "--timeout", type=moments.LENGTH, metavar="TIME", help="Stay no longer than this (exit code 5); the job goes on."
)
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
    wait: bool,
    follow: bool,
    timeout: timedelta | None,
    output: str,
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
    stays = wait or follow
    if timeout is not None and not stays:
        raise click.UsageError("--timeout needs --wait or --follow")

    async def work(db: Database) -> job_views.JobRow | None:
        scheduled = None if at is None else moments.future(at, await job_views.clock(db))
        wanted = Submission(await _workflow(db, name, version), given, priority, scheduled, key)
        submitted = _or_refused(name, (await submit_jobs(db, [wanted], created_by=operator()))[0])
        _say_submitted(submitted, output, stays=stays)
        if not stays:
            return None
        tell = (tell_json if output in ("json", "jsonl") else tell_line) if follow else None
        return await stay_with(db, _id_of(submitted), patience=timeout, tell=tell)

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
    """At once, so that who interrupts the waiting knows which job goes on. stdout gets the id alone."""
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


def end_like(job: job_views.JobRow, output: str) -> None:
    """Says how the job ended, and ends the command with the exit code that belongs to it."""
    _say_end(job, output)
    if job.status != _DONE:
        raise SystemExit(1)


@contextmanager
def interruptible() -> Generator[None]:
    """Ctrl-C ends the waiting, not the work."""
    try:
        yield
    except KeyboardInterrupt:
        say("\nno longer waiting: what was submitted goes on\n  → accsd jobs", err=True)
        raise SystemExit(_INTERRUPTED) from None


def _say_end(job: job_views.JobRow, output: str) -> None:
    if output in ("json", "jsonl"):
        say_json(asdict(job))
        return
    took = "" if job.took is None else f" after {duration(job.took)}"
    error = f": {job.error_code} {job.error_message or ''}".rstrip() if job.error_code else ""
    say(f"job {short(job.id)} is ", styled(job.status), f"{took}{error}", err=True)
    if job.status != _DONE:
        say(f"  → accsd job {short(job.id)}\n  → accsd retry {short(job.id)}", err=True)


def merged(
    document: str | None, pairs: Sequence[str], *, option: str = "-o", earlier: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The job's options: --options on top of those that were, then each pair on top of these. `option` is what the
    pairs were typed with."""
    options = {**deepcopy(dict(earlier or {})), **({} if document is None else _object(document))}
    for pair in pairs:
        path, equals, value = pair.partition("=")
        if not equals or not path:
            is_output = option == "-o" and pair in ("json", "jsonl", "name")
            hint = f"for that output write --output {pair}" if is_output else f"write {option} frames=240"
            raise InvalidValue(f'{option} "{pair}" is not KEY=VALUE', hint=hint)
        _put(options, path.split("."), _value(value), path)
    return options


def _object(document: str) -> dict[str, Any]:
    try:
        text = Path(document[1:]).read_bytes() if document.startswith("@") else document.encode()
        found = orjson.loads(text)
    except OSError as error:
        raise InvalidValue(f"{document[1:]} can't be read: {error.strerror}") from error
    except orjson.JSONDecodeError as error:
        raise InvalidValue(f"--options is not JSON: {error}", hint="""write --options '{"frames": 240}'""") from None
    if not isinstance(found, dict):
        raise InvalidValue("--options must be a JSON object", hint="""write --options '{"frames": 240}'""")
    return cast("dict[str, Any]", found)


def _value(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def _put(options: dict[str, Any], path: Sequence[str], value: Any, written: str) -> None:
    *way, last = path
    for part in way:
        inner = options.setdefault(part, {})
        if not isinstance(inner, dict):
            raise InvalidValue(f'-o {written}: "{part}" has a value already, so nothing can be within it')
        options = cast("dict[str, Any]", inner)
    options[last] = value
