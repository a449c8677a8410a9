"""`accsd schedules backfill` and `backfills`: runs for times that lie behind."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import click

from accsd.cli import completion, times
from accsd.cli.changes import tell
from accsd.cli.options import merged
from accsd.cli.output import output_option, say, show
from accsd.cli.schedules.options import rule_of, why_option
from accsd.cli.session import operator, with_database
from accsd.db import firings
from accsd.db.answers import Verdict
from accsd.db.firings import Backfill, BackfillAnswer
from accsd.db.pool import Database
from accsd.db.views import backfills as views
from accsd.db.views.backfills import BackfillPlanRow, BackfillRow
from accsd.db.views.schedules import ScheduleRow, schedule_named
from accsd.errors import InvalidValue, NotFound
from accsd.explain import schedule_changes as said
from accsd.explain.occurrences import behind
from accsd.explain.words import local_text, short
from accsd.planning.recurrence import Occurrence, Rule

_SHOWN: Final = 50  # lines of a dry run


@click.command("backfill")
@click.argument("name", shell_complete=completion.schedule_names)
@click.option("--from", "begin", required=True, metavar="TIME", help="The first time, local to the schedule's zone.")
@click.option("--to", "end", metavar="TIME", help="Before this time.  [default: now]")
@click.option(
    "--order", type=click.Choice(["oldest", "newest"]), default="oldest", show_default=True, help="Which run first."
)
@click.option(
    "--parallel", type=click.IntRange(1, 1000), default=1, show_default=True, help="So many of its jobs at once."
)
@click.option(
    "--existing",
    type=click.Choice(["none", "failed", "all"]),
    default="none",
    show_default=True,
    help="Which of those that have run are to run again.",
)
@click.option("-O", "--option", "pairs", metavar="KEY=VALUE", multiple=True, help="On top of its options. Repeatable.")
@click.option("--options", "document", metavar="JSON", help="More options as a JSON object, or @FILE.")
@click.option("--priority", type=click.IntRange(-(2**31), 2**31 - 1), help="[default: the schedule's, less 1]")
@click.option("--force", is_flag=True, help="Do not give way to the schedule's own runs.")
@click.option("--dry-run", is_flag=True, help="List the times and what would happen to each; gives a token.")
@click.option("--token", help="Of a dry run: refused if it would do something else by now.")
@why_option
@output_option()
@click.pass_context
def backfill_command(ctx: click.Context, name: str, begin: str, end: str | None, output: str, **asked: Any) -> None:
    """Run a schedule for times that lie behind: those that its present rule names, and that have not run.

    It goes on by itself, page by page, and gives way to what runs on time. `accsd schedules backfills` lists and
    cancels them.

    \b
    Examples:
      accsd schedules backfill nightly --from 2026-10-01 --to 2026-11-01 --dry-run
      accsd schedules backfill nightly --from 2026-10-01 --to 2026-11-01 --token 3f9a…
    """

    row, answer, plan = with_database(ctx, lambda db: _begun(ctx, db, name, begin, end, asked))
    if answer.verdict is Verdict.REFUSED:
        tell([said.backfill_refused(row.name, answer)], output)
    elif output == "table":
        _say(row, answer, plan)
    else:
        document = {"schedule": row.name, "answer": answer.verdict, "id": answer.id, "token": answer.token}
        counts = {"would_run": answer.would_run, "would_leave": answer.would_leave}
        occurrences = {"occurrences": [asdict(each) for each in plan]} if asked["dry_run"] else {}
        show([document | counts | occurrences], {}, output)


async def _begun(
    ctx: click.Context, db: Database, name: str, begin: str, end: str | None, asked: dict[str, Any]
) -> tuple[ScheduleRow, BackfillAnswer, list[BackfillPlanRow]]:
    """Starts it, or with a dry run says what it would do to each time."""
    row = await schedule_named(db, name)
    rule = rule_of(ctx, row)
    first = times.in_zone(begin, rule.zone, row.now, ahead=False)
    last = row.now if end is None else min(times.in_zone(end, rule.zone, row.now, ahead=False), row.now)
    found = behind(rule, first, last, newest_first=asked["order"] == "newest")
    if not found:
        raise NotFound(
            f"{row.name} names no time between {_text(first, rule)} and {_text(last, rule)} that lies behind",
            hint=f"`accsd schedules preview {row.name} --from {begin}` lists what it names",
        )
    wanted = _wanted(row, found, asked)
    how = {key: asked[key] for key in ("dry_run", "token", "reason")}
    answer = await firings.start_backfill(db, row.name, wanted, by=operator(), **how)
    if not asked["dry_run"] or answer.verdict is Verdict.REFUSED:
        return row, answer, []
    plan = await views.preview_backfill(db, row.id, wanted.nominals, wanted.folds, wanted.existing)
    return row, answer, plan


def _wanted(row: ScheduleRow, found: Sequence[Occurrence], asked: dict[str, Any]) -> Backfill:
    has_options = asked["pairs"] or asked["document"] is not None
    return Backfill(
        revision=row.revision,
        nominals=[each.nominal for each in found],
        folds=[each.fold for each in found],
        dues=[each.due_at for each in found],
        parallel=asked["parallel"],
        existing=asked["existing"],
        options=merged(asked["document"], asked["pairs"], option="-O") if has_options else None,
        priority=asked["priority"],
        force=asked["force"],
    )


def _text(moment: datetime, rule: Rule) -> str:
    return local_text(rule.zone.local(moment))


def _say(row: ScheduleRow, answer: BackfillAnswer, plan: Sequence[BackfillPlanRow]) -> None:
    counts = f"{answer.would_run} run, {answer.would_leave} are left as they are"
    if answer.id is not None:
        say(f"backfill {short(answer.id)} of {row.name} has begun: {counts}")
        say(f"  → accsd schedules backfills list {row.name}", err=True)
        return
    lines = [
        {
            "nominal": local_text(each.nominal) + (" (second pass)" if each.fold else ""),
            "would": each.would,
            "outcome": each.outcome,
            "job": "" if each.job_id is None else short(each.job_id),
        }
        for each in plan[:_SHOWN]
    ]
    show(lines, {"nominal": "nominal", "would": "would", "outcome": "so far", "job": "job"}, "table")
    if len(plan) > _SHOWN:
        say(f"… and {len(plan) - _SHOWN} more")
    say(f"it would be: {counts}")
    say(f"token {answer.token}")
    say("  → the same again with --token instead of --dry-run starts it", err=True)


@click.group("backfills")
def backfills_group() -> None:
    """List backfills and cancel them."""


@backfills_group.command("list")
@click.argument("name", required=False, shell_complete=completion.schedule_names)
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="How many.")
@output_option()
@click.pass_context
def list_command(ctx: click.Context, name: str | None, limit: int, output: str) -> None:
    """List backfills, newest first: of one schedule, or of all."""

    async def work(db: Database) -> list[BackfillRow]:
        which = None if name is None else (await schedule_named(db, name)).id
        return await views.backfills(db, schedule_id=which, limit=limit)

    found = with_database(ctx, work)
    columns = {"id": "id", "schedule": "schedule", "state": "state", "done": "done", "started": "started"}
    columns |= {"left_alone": "left", "failed": "failed", "open_jobs": "open", "created_at": "begun", "by": "by"}
    rows = [asdict(each) for each in found]
    if output == "table":
        rows = [each | {"id": short(each["id"]), "done": f"{each['done']}/{each['total']}"} for each in rows]
    show(rows, columns, output, empty="no backfills")


@backfills_group.command("cancel")
@click.argument("backfill")
@click.option("--cancel-jobs", is_flag=True, help="Cancel its open jobs, too.")
@why_option
@output_option()
@click.pass_context
def cancel_command(ctx: click.Context, backfill: str, cancel_jobs: bool, reason: str | None, output: str) -> None:
    """End a backfill. BACKFILL is its id, or the beginning or end of it."""

    async def work(db: Database) -> tuple[UUID, firings.OccurrenceAnswer]:
        found = await views.backfill_ids_like(db, backfill.strip().lower())
        if not found:
            raise NotFound(f'there is no backfill "{backfill}"', hint="`accsd schedules backfills list` shows them")
        if len(found) > 1:
            raise InvalidValue(f'"{backfill}" is a part of several ids', hint="type more of it, or the whole id")
        return found[0], await firings.cancel_backfill(db, found[0], cancel=cancel_jobs, by=operator(), reason=reason)

    which, answer = with_database(ctx, work)
    tell([said.backfill_cancelled(which, answer)], output)
