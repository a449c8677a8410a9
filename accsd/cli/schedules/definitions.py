"""`accsd schedules create|edit|end`: checked here, before the database is asked, and answered in words."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import click

from accsd.cli import completion
from accsd.cli.changes import tell
from accsd.cli.output import output_option, say, show
from accsd.cli.schedules.options import definition_options, dry_run_option, say_preview, warn, why_option, written
from accsd.cli.session import operator, settings_of, with_database
from accsd.db import schedules as verbs
from accsd.db.pool import Database
from accsd.db.views import schedules as views
from accsd.db.views.schedules import ScheduleRow
from accsd.errors import InvalidValue, VerbRefused
from accsd.explain import schedule_changes as said
from accsd.explain import schedule_definitions as definitions
from accsd.explain.changes import ChangeOutcome
from accsd.explain.schedule_definitions import Draft
from accsd.model.schedule import KINDS, ScheduleDef, is_for
from accsd.planning.conditions import MEMBERS

_UNSET = sorted({*ScheduleDef.model_fields, *MEMBERS} - {"name", "workflow", "anchor", *KINDS} | {"every"})


@click.command("create")
@click.argument("name")
@definition_options
@why_option
@dry_run_option
@output_option()
@click.pass_context
def create_command(ctx: click.Context, name: str, reason: str | None, dry_run: bool, output: str, **given: Any) -> None:
    """Make a schedule. It is checked first; the answer says in words what it does, and when it is due next.

    \b
    Examples:
      accsd schedules create nightly --workflow backup --cron '30 2 * * *' --timezone Europe/Berlin
      accsd schedules create sync --workflow sync --every 90m --overlap queue -O 'day=${nominal}'
      accsd schedules create party --workflow lights --at 2026-12-31T23:59:50 --timezone Europe/Chisinau
      accsd schedules create packing --workflow pack --event 'shop.order.*' -O 'order=${event.payload.number}'
      accsd schedules create tidy --workflow tidy --condition disk.used --above 90 --clear-below 80 --samples 2
    """
    if given["workflow"] is None:
        raise InvalidValue("a schedule needs a workflow that it starts", hint="give --workflow NAME")
    definition = ScheduleDef.model_validate({"name": name, **written(given)})
    spread = settings_of(ctx).scheduler.spread

    async def work(db: Database) -> dict[str, Any]:
        await definitions.check_workflow(db, definition)
        draft = await definitions.drafted(db, definition, spread=spread)
        if draft.row is not None:
            ended = " It has ended; an edit of its times makes it active again." if draft.row.state == "ended" else ""
            raise VerbRefused(
                "create",
                f"there is one of this name already.{ended}".rstrip("."),
                subject=f"schedule {name}",
                hint=f"accsd schedules edit {name}, or choose another name",
            )
        return await _written(db, draft, spread, reason=reason, dry_run=dry_run)

    _tell(with_database(ctx, work), output, dry_run=dry_run)


@click.command("edit")
@click.argument("name", shell_complete=completion.schedule_names)
@definition_options
@click.option("--unset", type=click.Choice(_UNSET), multiple=True, help="Back to the default. Repeatable.")
@click.option("--if-revision", type=click.IntRange(min=1), help="Only if nobody has changed it since this revision.")
@why_option
@dry_run_option
@output_option()
@click.pass_context
def edit_command(
    ctx: click.Context,
    name: str,
    unset: Sequence[str],
    if_revision: int | None,
    reason: str | None,
    dry_run: bool,
    output: str,
    **given: Any,
) -> None:
    """Change what is given of a schedule; the rest stays. It never makes anything in the past due.

    New times replace the old ones; a skip or snooze that they do not have is dropped, and the answer says so.

    \b
    Examples:
      accsd schedules edit nightly --cron '0 3 * * *' --reason "the backup server moved"
      accsd schedules edit nightly --unset catch_up --if-revision 3
    """
    spread = settings_of(ctx).scheduler.spread

    async def work(db: Database) -> dict[str, Any]:
        row = await views.schedule_named(db, name)
        draft = await definitions.drafted(db, _edited(row, given, unset), spread=spread)
        if if_revision is not None and if_revision != row.revision:
            raise VerbRefused(
                "edit",
                f"it is revision {row.revision} now, not {if_revision}",
                subject=f"schedule {row.name}",
                hint=f"accsd schedules show {row.name}, then try again",
            )
        if {"workflow", "version"} & draft.changes.keys():
            await definitions.check_workflow(db, draft.definition)
        return await _written(db, draft, spread, reason=reason, dry_run=dry_run)

    _tell(with_database(ctx, work), output, dry_run=dry_run)


def _edited(row: ScheduleRow, given: dict[str, Any], unset: Sequence[str]) -> ScheduleDef:
    fields = written(given, row)
    if not fields and not unset:
        raise InvalidValue("nothing was given to change", hint="`accsd schedules edit --help` lists what can be")
    kept = {key: value for key, value in definitions.definition_of(row).items() if key not in unset}
    if new := [KINDS[field] for field in KINDS if field in fields]:
        # what starts it replaces what did, with all that only the old kind knows
        kept = {key: value for key, value in kept.items() if key not in KINDS and is_for(key, new[0])}
    edited = kept | fields
    if members := [name for name in unset if name in MEMBERS]:
        if edited.get("condition") is None:
            raise InvalidValue(f"--unset {members[0]} is for conditions, and {row.name} is of kind {row.schedule_kind}")
        judged: dict[str, Any] = edited["condition"]
        edited["condition"] = {key: value for key, value in judged.items() if key not in members}
    return ScheduleDef.model_validate(edited)


async def _written(
    db: Database, draft: Draft, spread: timedelta, *, reason: str | None, dry_run: bool
) -> dict[str, Any]:
    change = definitions.change_of(draft)
    if dry_run:
        revision = None if draft.row is None else draft.row.revision
        return {"draft": draft, "document": definitions.document(draft, change, revision=revision) | {"dry_run": True}}
    answer = definitions.or_refused(draft, await definitions.write(db, draft, by=operator(), reason=reason))
    # by its true id, which decides its share of a spread, and what H means
    now = await definitions.drafted(db, draft.definition, spread=spread) if draft.row is None else draft
    shown = definitions.document(now, change, id=answer.id, revision=answer.revision)
    return {"draft": now, "document": shown | {"changes": definitions.document(draft, change)["changes"]}}


def _tell(told: dict[str, Any], output: str, *, dry_run: bool) -> None:
    draft: Draft = told["draft"]
    document: dict[str, Any] = told["document"]
    if output != "table":
        show([document], {}, output, name="name")
        return
    say_change(draft, document["change"], document["revision"], dry_run=dry_run)
    say(document["words"])
    if draft.ahead and draft.rule is not None:
        say_preview(draft.ahead, draft.rule.zone, draft.now)
    say_notes(draft)


def say_change(draft: Draft, change: str, revision: int | None, *, dry_run: bool, err: bool = False) -> None:
    would = {"created": "would be created", "updated": "would be changed", "unchanged": "would stay as it is"}
    is_now = {"created": "is created", "updated": f"is changed, revision {revision}", "unchanged": "is unchanged"}
    say(f"schedule {draft.name} {would[change] if dry_run else is_now[change]}", err=err)
    if draft.stays_ended:
        say("  it has ended, and stays so: other times, or another --max-runs, bring it back", err=True)


def say_notes(draft: Draft) -> None:
    for each in draft.dropped:
        say(f"note: {each}", err=True)
    warn(draft.warnings)


@click.command("end")
@click.argument("name", shell_complete=completion.schedule_names)
@click.option("--cancel", is_flag=True, help="Cancel its open jobs, too.")
@why_option
@output_option()
@click.pass_context
def end_command(ctx: click.Context, name: str, cancel: bool, reason: str | None, output: str) -> None:
    """End a schedule: nothing follows. It stays with its ledger, and its open jobs run on.

    \b
    Example: accsd schedules end nightly --cancel --reason "replaced by hourly"
    """

    async def work(db: Database) -> ChangeOutcome:
        row = await views.schedule_named(db, name)
        answer, cancelled = await verbs.end_schedule(db, row.name, by=operator(), reason=reason, cancel=cancel)
        return said.ended(row.name, answer, cancelled, row.open_jobs + row.waiting_jobs)

    tell([with_database(ctx, work)], output)
