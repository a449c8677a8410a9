"""`accsd outbox`: what is to be told to others about jobs, how that goes, and sending it again."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

import click

from accsd.cli import completion
from accsd.cli.changes import reason_option, tell
from accsd.cli.output import output_option, say, show, show_one
from accsd.cli.session import operator, settings_of, with_database
from accsd.db import outbox as store
from accsd.db.answers import Verdict
from accsd.db.outbox import OutboxAnswer, OutboxRow, TargetRow
from accsd.db.pool import Database
from accsd.errors import NotFound
from accsd.explain.changes import ChangeOutcome
from accsd.explain.identifiers import job_named
from accsd.explain.words import duration, short
from accsd.settings import Settings

_STATES: Final = ("waiting", "delivered", "dead")
_LONGEST_ERROR: Final = 60
_COLUMNS: Final = ("id", "target", "event", "job", "state", "attempts", "due", "error", "age")
_TARGET_COLUMNS: Final = ("name", "address", "events", "workflows", "state", "waiting", "dead", "error")


@click.group()
def outbox() -> None:
    """What is told to others about jobs: events that wait, were delivered or given up, and the targets."""


@outbox.command("list")
@click.option("--target", help="Only to this one.")
@click.option(
    "--job",
    "job_id",
    metavar="JOB",
    shell_complete=completion.jobs,
    help="Only of this job; the beginning or the end of its id will do.",
)
@click.option("--state", "states", type=click.Choice(_STATES), multiple=True, help="Only these; may be repeated.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=50, show_default=True, help="How many.")
@output_option()
@click.pass_context
def list_command(
    ctx: click.Context, target: str | None, job_id: str | None, states: Sequence[str], limit: int, output: str
) -> None:
    """List outgoing events, newest first.

    \b
    Examples:
      accsd outbox list --state dead
      accsd outbox list --job 3f9a21c4
    """

    async def work(db: Database) -> list[OutboxRow]:
        job = None if job_id is None else await job_named(db, job_id)
        return await store.events(db, target=target, job_id=job, states=states, limit=limit)

    found = with_database(ctx, work)
    rows = [_cells(row) if output == "table" else asdict(row) for row in found]
    show(rows, {name: name for name in _COLUMNS}, output, empty="there is no outgoing event")
    if output == "table" and any(row.state == "dead" for row in found):
        say("  → accsd outbox redrive ID…", err=True)


def _cells(row: OutboxRow) -> dict[str, Any]:
    error = row.last_error or ""
    return {
        "id": row.id,
        "target": row.target,
        "event": row.event,
        "job": "" if row.job_id is None else short(row.job_id),
        "state": row.state,
        "attempts": row.attempts,
        "due": _due(row),
        "error": error if len(error) <= _LONGEST_ERROR else error[: _LONGEST_ERROR - 1] + "…",
        "age": row.age,
    }


def _due(row: OutboxRow) -> str:
    if row.due_in is None:
        return "after others" if row.state == "waiting" else ""
    return f"in {duration(row.due_in)}" if row.due_in.total_seconds() > 0 else "now"


@outbox.command("show")
@click.argument("event_id", type=int, metavar="ID")
@output_option()
@click.pass_context
def show_command(ctx: click.Context, event_id: int, output: str) -> None:
    """Show one outgoing event with what is sent.

    \b
    Example: accsd outbox show 17
    """
    show_one(asdict(with_database(ctx, lambda db: store.event(db, event_id))), output)


@outbox.command("redrive")
@click.argument("ids", nargs=-1, type=int, metavar="ID…")
@click.option("--all", "everything", is_flag=True, help="All that were given up.")
@click.option("--target", help="With --all: only to this one.")
@reason_option
@output_option()
@click.pass_context
def redrive_command(
    ctx: click.Context, ids: Sequence[int], everything: bool, target: str | None, reason: str | None, output: str
) -> None:
    """Send events again, delivered ones too, from now on as if they had never failed. Their target is called at once.

    An event that comes so late comes after later ones of its job: receivers tell them apart by their ids.

    \b
    Examples:
      accsd outbox redrive 17 18
      accsd outbox redrive --all --target studio
    """
    if bool(ids) == everything:
        raise click.UsageError("name the ids of `accsd outbox list`, or say --all")
    if target is not None and not everything:
        raise click.UsageError("--target goes with --all")
    wanted = None if everything else list(dict.fromkeys(ids))

    async def work(db: Database) -> list[OutboxAnswer]:
        return await store.redrive_events(db, wanted, target=target, by=operator(), reason=reason)

    answers = with_database(ctx, work)
    if answers and all(answer.verdict is Verdict.REFUSED for answer in answers):
        missing = ", ".join(str(answer.id) for answer in answers)
        raise NotFound(f"there is no outgoing event {missing}", hint="try `accsd outbox list`")
    if not answers:
        say("nothing was given up", err=True)
    tell((_outcome(answer) for answer in sorted(answers, key=lambda one: one.id)), output)


def _outcome(answer: OutboxAnswer) -> ChangeOutcome:
    said = {
        Verdict.ACCEPTED: "is sent again",
        Verdict.REPEATED: "is being sent at this moment",
        Verdict.REFUSED: "is not there",
    }
    return ChangeOutcome(answer.id, answer.verdict, answer.reason, f"event {answer.id} {said[answer.verdict]}")


@outbox.command("targets")
@output_option()
@click.pass_context
def targets_command(ctx: click.Context, output: str) -> None:
    """List who is told, of what, and how that goes. Targets stand in the builder's settings, [outbox.targets].

    \b
    Example: accsd outbox targets
    """
    found, settings = with_database(ctx, store.targets), settings_of(ctx)
    rows = [_target_cells(row, settings) if output == "table" else asdict(row) for row in found]
    empty = "nobody is told: no builder has a target in its settings, [outbox.targets]"
    show(rows, {name: name for name in _TARGET_COLUMNS}, output, name="name", empty=empty)


def _target_cells(row: TargetRow, settings: Settings) -> dict[str, Any]:
    error = row.last_error if row.failures else None
    return {
        "name": row.name,
        "address": row.address,
        "events": ", ".join(row.events),
        "workflows": "all" if row.workflows is None else ", ".join(row.workflows),
        "state": _state(row, settings),
        "waiting": row.waiting,
        "dead": row.dead,
        "error": (error or "")[:_LONGEST_ERROR],
    }


def _state(row: TargetRow, settings: Settings) -> str:
    # it is noted once a minute that a builder looks
    if row.unseen_for.total_seconds() > 120 + 2 * settings.poll_sec:
        return f"no builder for {duration(row.unseen_for)}"
    if row.is_open:
        return f"left alone after {row.failures} failures"
    return "failing" if row.failures else "well"


@outbox.command("forget")
@click.argument("name")
@reason_option
@click.pass_context
def forget_command(ctx: click.Context, name: str, reason: str | None) -> None:
    """Tell a target nothing any more. Take it out of the builder's settings first, or its next start brings it back.

    \b
    Example: accsd outbox forget studio
    """
    with_database(ctx, lambda db: store.forget_target(db, name, by=operator(), reason=reason))
    say(f"target {name} is forgotten")
