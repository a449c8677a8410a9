"""Schedules in files: in a file of their own, or beside the steps of the workflow that they start. They are read with
the line of each mistake, compared with what is applied, and applied (`schedules apply`, `workflows apply|diff`)."""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, cast

import click

from accsd.cli import workflow_files
from accsd.cli.output import output_option, say, show, styled
from accsd.cli.schedules.definitions import say_change, say_notes
from accsd.cli.schedules.options import dry_run_option, say_preview, why_option
from accsd.cli.session import operator, settings_of, with_database
from accsd.cli.workflow_files import Document
from accsd.db import schedules as verbs
from accsd.db.pool import Database
from accsd.db.views import schedules as views
from accsd.db.views.schedules import ScheduleRow
from accsd.errors import InvalidValue, Place, ScheduleInvalid
from accsd.explain import schedule_definitions as definitions
from accsd.explain.schedule_definitions import Draft
from accsd.model.schedule import ScheduleDef


def schedules_of(documents: Iterable[Document]) -> list[ScheduleDef]:
    """All schedules of these documents; all mistakes are in one message, each with its line."""
    sound: list[ScheduleDef] = []
    complaints: list[str] = []
    hint = None
    for document in documents:
        for place, written in _entries(document):
            try:
                sound.append(ScheduleDef.model_validate(written))
            except ScheduleInvalid as error:
                found = error.complaints or [((), error.message)]
                complaints += document.located(
                    [((*place, *within), f"{_title(written)}{said}") for within, said in found]
                )
                hint = hint or error.hint
    if complaints:
        raise ScheduleInvalid("\n".join(complaints), hint=hint or "correct it, then try again with --dry-run")
    names = [schedule.name for schedule in sound]
    if twins := sorted({name for name in names if names.count(name) > 1}):
        raise ScheduleInvalid(f'the schedule "{twins[0]}" is written twice', hint="a name belongs to one schedule")
    return sound


def _entries(document: Document) -> Iterable[tuple[Place, Any]]:
    """The schedules of a document with their places. One beside steps starts the workflow that these are of."""
    value = document.value
    if document.is_schedule:
        yield (), value
        return
    listed: Any = cast("dict[str, Any]", value).get("schedules") if isinstance(value, dict) else None
    if listed is None:
        return
    if not isinstance(listed, list):
        raise ScheduleInvalid("\n".join(document.located([(("schedules",), "schedules must be a list")])))
    beside = {"workflow": cast("dict[str, Any]", value).get("name")} if document.is_workflow else {}
    for number, each in enumerate(cast("list[Any]", listed)):
        is_table = isinstance(each, dict)
        yield ("schedules", number), (beside | cast("dict[str, Any]", each) if is_table else each)


def _title(written: Any) -> str:
    name: Any = cast("dict[str, Any]", written).get("name") if isinstance(written, dict) else None
    return f'schedule "{name[:100]}": ' if isinstance(name, str) else "schedule: "


def workflows_of(documents: Iterable[Document]) -> set[str]:
    """The workflows that these files are about, whether they have schedules or not."""
    named = {schedule.workflow for schedule in schedules_of(documents)}
    return named | {name for document in documents if (name := _workflow_of(document)) is not None}


def _workflow_of(document: Document) -> str | None:
    """The name of the workflow that a document defines."""
    written: Any = document.value if document.is_workflow else None
    name: Any = cast("dict[str, Any]", written).get("name") if isinstance(written, dict) else None
    return name if isinstance(name, str) else None


# Applied


@click.command("apply")
@click.argument("files", nargs=-1, required=True, metavar="FILE…")
@click.option("--prune", is_flag=True, help="End the schedules of the same workflows that no file has.")
@why_option
@dry_run_option
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
        - name: packing
          workflow: pack
          event: shop.order.*
          filter: event.payload.total > 100.0
          options: {order: "${event.payload.number}"}
        - name: tidy-when-full
          workflow: tidy
          condition: {name: disk.used, above: 90, clear_below: 80, samples: 2}

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
        say_change(draft, document["change"], document["revision"], dry_run=dry_run, err=err)
        if dry_run and document["change"] != "unchanged":
            _say_difference(draft)
        say_notes(draft)


def _say_difference(draft: Draft) -> None:
    for line in definitions.difference(draft):
        say(styled(line, {"+": "green", "-": "red", "@": "cyan"}.get(line[:1])))
    if draft.rule is None:
        say(draft.words)
        return
    if draft.before:
        say("next, as it is:")
        say_preview(draft.before, draft.rule.zone, draft.now)
    say("next, as it would be:" if draft.before else "next:")
    say_preview(draft.ahead, draft.rule.zone, draft.now)


# Compared


async def different(db: Database, documents: Sequence[Document], spread: timedelta) -> list[Applied]:
    """The schedules of these files that are not applied as they stand there. Their workflows need not be there yet."""
    own = {name for document in documents if (name := _workflow_of(document)) is not None}
    wanted = schedules_of(documents)
    for each in wanted:
        if each.workflow not in own:
            await definitions.check_workflow(db, each)
    drafts = [await definitions.drafted(db, each, spread=spread) for each in wanted]
    return [(each, _document(each, None)) for each in drafts if definitions.change_of(each) != "unchanged"]
