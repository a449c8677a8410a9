"""`accsd schedules create|edit|apply|end`: checked here, before the database is asked, and answered in words."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import click

from accsd.cli import completion, workflow_files
from accsd.cli.changes import tell
from accsd.cli.output import output_option, say, show, styled
from accsd.cli.schedule_files import schedules_of, workflows_of
from accsd.cli.schedule_options import TIMES, definition_options, say_preview, why_option, written
from accsd.cli.session import operator, settings_of, with_database
from accsd.cli.workflow_files import Document
from accsd.db import schedules as verbs
from accsd.db.pool import Database
from accsd.db.views import schedules as views
from accsd.db.views.schedules import ScheduleRow
from accsd.errors import InvalidValue, VerbRefused
from accsd.explain import schedule_changes as said
from accsd.explain import schedule_definitions as definitions
from accsd.explain import schedules as words
from accsd.explain.changes import ChangeOutcome
from accsd.explain.schedule_definitions import Draft
from accsd.model.schedule import ScheduleDef

_dry_run = click.option("--dry-run", is_flag=True, help="Check it and say what would be; write nothing.")
_UNSET = sorted(set(ScheduleDef.model_fields) - {"name", "workflow", "anchor", *TIMES})


@click.command("create")
@click.argument("name")
@definition_options
@why_option
@_dry_run
@output_option()
@click.pass_context
def create_command(ctx: click.Context, name: str, reason: str | None, dry_run: bool, output: str, **given: Any) -> None:
    """Make a schedule. It is checked first; the answer says in words what it does, and when it is due next.

    \b
    Examples:
      accsd schedules create nightly --workflow backup --cron '30 2 * * *' --timezone Europe/Berlin
      accsd schedules create sync --workflow sync --every 90m --overlap queue -O 'day=${nominal}'
      accsd schedules create party --workflow lights --at 2026-12-31T23:59:50 --timezone Europe/Chisinau
    """
    if given["workflow"] is None:
        raise InvalidValue("a schedule needs a workflow that it starts", hint="give --workflow NAME")
    definition = _defined({"name": name, **written(given)})
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
@_dry_run
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
    fields = written(given, earlier=row.options)
    if not fields and not unset:
        raise InvalidValue("nothing was given to change", hint="`accsd schedules edit --help` lists what can be")
    before = definitions.definition_of(row)
    if any(when in fields for when in TIMES):
        before = {key: value for key, value in before.items() if key not in TIMES}
    kept = {key: value for key, value in before.items() if key not in unset}
    return _defined(kept | fields)


def _defined(fields: dict[str, Any]) -> ScheduleDef:
    return ScheduleDef.model_validate(fields)


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
    _say_change(draft, document["change"], document["revision"], dry_run=dry_run)
    say(document["words"])
    if draft.ahead:
        say_preview(draft.ahead, draft.rule.zone, draft.now)
    _say_notes(draft)


def _say_change(draft: Draft, change: str, revision: int | None, *, dry_run: bool, err: bool = False) -> None:
    would = {"created": "would be created", "updated": "would be changed", "unchanged": "would stay as it is"}
    is_now = {"created": "is created", "updated": f"is changed, revision {revision}", "unchanged": "is unchanged"}
    say(f"schedule {draft.name} {would[change] if dry_run else is_now[change]}", err=err)
    if draft.stays_ended:
        say("  it has ended, and stays so: other times, or another --max-runs, bring it back", err=True)


def _say_notes(draft: Draft) -> None:
    for each in draft.dropped:
        say(f"note: {each}", err=True)
    for warning in draft.warnings:
        say(f"warning: {words.warning_words(warning)}", err=True)


# From files


@click.command("apply")
@click.argument("files", nargs=-1, required=True, metavar="FILE…")
@click.option("--prune", is_flag=True, help="End the schedules of the same workflows that no file has.")
@why_option
@_dry_run
@output_option()
@click.pass_context
def apply_command(
    ctx: click.Context, files: Sequence[str], prune: bool, reason: str | None, dry_run: bool, output: str
) -> None:
    """Write the schedules of files or folders (- is stdin) into the database, all of them or none.

    A field that a file does not have is the default. A schedule may stand beside the steps of its workflow (which
    `accsd workflows apply` writes together with it), or in a file without steps:

    \b
      schedules:
        - name: nightly
          workflow: backup
          cron: "30 2 * * *"
          timezone: Europe/Berlin
          missed: one

    \b
    Example: accsd schedules apply schedules/ --prune --dry-run
    """
    documents = workflow_files.read(files)
    results = apply_documents(ctx, documents, prune=prune, reason=reason, dry_run=dry_run)
    tell_applied(results, output, dry_run=dry_run)


Applied = tuple[Draft | None, dict[str, Any]]


def apply_documents(
    ctx: click.Context,
    documents: Sequence[Document],
    *,
    prune: bool = False,
    reason: str | None = None,
    dry_run: bool = False,
) -> list[Applied]:
    for document in documents:
        document.refuse_doubles()
    wanted = schedules_of(documents)
    if not wanted and not prune:
        raise InvalidValue("these files have no schedules", hint="a file lists them under schedules:")
    spread = settings_of(ctx).scheduler.spread

    async def work(db: Database) -> list[Applied]:
        return await write_all(db, documents, spread, prune=prune, reason=reason, dry_run=dry_run)

    return with_database(ctx, work)


async def write_all(
    db: Database,
    documents: Sequence[Document],
    spread: timedelta,
    *,
    prune: bool = False,
    reason: str | None = None,
    dry_run: bool = False,
) -> list[Applied]:
    """Everything is checked before anything is written, and written in one transaction."""
    wanted = schedules_of(documents)
    for each in wanted:
        await definitions.check_workflow(db, each)
    drafts = [await definitions.drafted(db, each, spread=spread) for each in wanted]
    surplus = await _surplus(db, documents, {each.name for each in wanted}) if prune else []
    if dry_run:
        return [*((each, _document(each, None)) for each in drafts), *((None, _ended(row)) for row in surplus)]
    async with db.acquire() as connection, connection.transaction():
        within = Database.over(connection)
        done: list[Applied] = []
        for draft in drafts:
            answer = await definitions.write(within, draft, by=operator(), reason=reason)
            done.append((draft, _document(draft, definitions.or_refused(draft, answer))))
        for row in surplus:
            await verbs.end_schedule(within, row.name, by=operator(), reason=reason or "no file has it any more")
            done.append((None, _ended(row)))
        return done


async def _surplus(db: Database, documents: Sequence[Document], names: set[str]) -> list[ScheduleRow]:
    about = workflows_of(documents)
    return [row for row in await views.schedules(db) if row.workflow in about and row.name not in names]


def _document(draft: Draft, answer: verbs.ScheduleAnswer | None) -> dict[str, Any]:
    change = definitions.change_of(draft)
    if answer is None:
        return definitions.document(draft, change) | {"dry_run": True}
    return definitions.document(draft, change, id=answer.id, revision=answer.revision)


def _ended(row: ScheduleRow) -> dict[str, Any]:
    return {"name": row.name, "change": "ended", "id": row.id, "revision": row.revision}


def tell_applied(results: Sequence[Applied], output: str, *, dry_run: bool, err: bool = False) -> None:
    if output != "table":
        show([document for _, document in results], {}, output, name="name")
        return
    for draft, document in results:
        if draft is None:
            say(f"schedule {document['name']} {'would end' if dry_run else 'has ended'}: no file has it", err=err)
            continue
        _say_change(draft, document["change"], document["revision"], dry_run=dry_run, err=err)
        if dry_run and document["change"] != "unchanged":
            _say_difference(draft)
        _say_notes(draft)


def _say_difference(draft: Draft) -> None:
    for line in definitions.difference(draft):
        say(styled(line, {"+": "green", "-": "red", "@": "cyan"}.get(line[:1])))
    if draft.before:
        say("next, as it is:")
        say_preview(draft.before, draft.rule.zone, draft.now)
    say("next, as it would be:" if draft.before else "next:")
    say_preview(draft.ahead, draft.rule.zone, draft.now)


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
