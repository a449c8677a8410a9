"""`accsd workflows`: brought in from files, checked, listed, shown, compared, paused and resumed; their caches
forgotten."""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import click

from accsd.cli import completion, workflow_files, workflow_objects
from accsd.cli.changes import reason_option
from accsd.cli.graph import aligned, draw
from accsd.cli.output import FORMATS, Shown, output_option, say, show, since, styled, text, to_json
from accsd.cli.pause import Subject, pause_one, resume_one
from accsd.cli.session import operator, settings_of, with_database
from accsd.cli.workflow_files import Document, canonical_yaml
from accsd.cli.workflow_render import render_command
from accsd.db import Pausable
from accsd.db import workflows as stored
from accsd.db.cache import forget_results
from accsd.db.pool import Database
from accsd.db.tools import bound_workflow
from accsd.db.views import workflows as workflow_views
from accsd.db.workflows import Applied, Change, StoredWorkflow
from accsd.errors import NotFound, Unavailable, UserError, WorkflowInvalid
from accsd.explain.fleet import Paused
from accsd.explain.words import cut, duration
from accsd.model import WorkflowDef, WorkflowStep
from accsd.model.files import WorkflowFile
from accsd.values.names import TOOL_SERVICE
from accsd.values.units import shown_size
from accsd.values.validation import did_you_mean

_LONGEST_EXPRESSION: Final = 50
_DIGEST_SHOWN: Final = 12

_files = click.argument("files", nargs=-1, required=True, metavar="FILE…")


@click.group()
def workflows() -> None:
    """Apply, check, list, show, compare, pause and resume workflows.

    \b
    A file is YAML, JSON or TOML:
      name: media
      steps:
        - key: fetch
          service: fetcher
          default_params: {url: "https://example.org/a.wav"}
        - key: render
          service: renderer
          depends_on: [fetch]
          max_attempts: 5
          timeout: 10m

    Data flows by `if`, `with`, `for_each` and their like (docs/pipelines.md):

    \b
        - key: publish
          service: publisher
          depends_on: [render]
          if: steps.render.frames > 0
          with: {title: "${params.title}, ${steps.render.frames} frames"}

    A step may also have backoff, requires (labels of a node), node, concurrency_key and concurrency_limit. Beside the
    steps, notify: [task.error] names what becomes an outgoing event (docs/outbox.md), schedules: lists what starts the
    workflow by itself (`accsd schedules apply --help`), and files: [{name: a.ttf, source: fonts/a.ttf}] what is laid
    into each task (docs/pipelines.md).
    """


@workflows.command("apply")
@_files
@click.option("--again", is_flag=True, help="Put files into the store that are there already: one of them is damaged.")
@reason_option
@output_option()
@click.pass_context
def apply_command(ctx: click.Context, files: Sequence[str], again: bool, reason: str | None, output: str) -> None:
    """Write the workflows of files or folders (- is stdin) into the database, all of them or none.

    A file that names a version is written under that version. One that names none makes a new version where its steps
    differ from the newest, and changes nothing where they don't: jobs keep the version that they were submitted under.

    Files that a workflow names (files:) are put into the object store first, each once. Schedules that stand beside the
    steps (schedules:), or in files of their own, are written too, after the workflows.

    \b
    Example: accsd workflows apply media.yaml nightly/
    """
    documents = workflow_files.read(files)
    wanted = _checked(documents, warn=True)
    if inactive := [workflow.name for workflow in wanted if not workflow.is_active]:
        raise WorkflowInvalid(f"{', '.join(inactive)}: is_active is false, and what is applied is active")

    has_schedules = bool(_check_schedules(documents))
    wanted, sources = workflow_objects.hashed(wanted)

    async def work(db: Database) -> list[Applied]:
        bound = await _bound(db, documents, wanted)  # what can't be applied uploads nothing
        written = await workflow_objects.stored(db, settings_of(ctx), wanted, sources, again=again)
        applied = await stored.apply_workflows(db, written, created_by=operator(), reason=reason)
        _warn(await _missing_services(db, bound))
        return applied

    applied = with_database(ctx, work)
    if output == "table":
        for one in applied:
            say(_sentence(one))
    else:
        show([asdict(one) for one in applied], {}, output, name="name")
    if has_schedules:
        from accsd.cli.schedules.files import apply_documents, tell_applied

        # stdout has one document, that of the workflows; `accsd schedules apply -o json` answers for schedules
        tell_applied(apply_documents(ctx, documents), "table", dry_run=False, err=output != "table")


def _sentence(applied: Applied) -> str:
    named = f"{applied.name} version {applied.version}"
    match applied.change:
        case Change.CREATED if applied.previous is not None:
            return f"{named} created (version {applied.previous} was the newest)"
        case change:
            return f"{named} {change}"


@workflows.command("check")
@_files
@click.option(
    "--services/--no-services",
    default=None,
    help="Ask the database whether a node offers each service. Without either: if one is configured and reachable.",
)
@click.pass_context
def check_command(ctx: click.Context, files: Sequence[str], services: bool | None) -> None:
    """Check workflow files, with their expressions, without writing anything. Exit code 1 when one is wrong.

    \b
    Example: accsd workflows check media.yaml
    """
    documents = workflow_files.read(files)
    wanted = _checked(documents, warn=True)
    names = _check_schedules(documents)
    if services is not False:
        _warn(_asked_for_services(ctx, documents, wanted, required=bool(services)))
    for workflow in wanted:
        count = len(workflow.steps)
        say(f"{workflow.name}: ok, {count} step{'s' if count != 1 else ''}{_counted(workflow.files)}")
    for name in names:
        say(f"schedule {name}: ok")


def _counted(files: Sequence[WorkflowFile]) -> str:
    return f", {len(files)} file{'s' if len(files) != 1 else ''}" if files else ""


# the name of `check` in earlier versions
workflows.add_command(
    click.Command("validate", params=check_command.params, callback=check_command.callback, hidden=True)
)
workflows.add_command(render_command)


def _check_schedules(documents: Sequence[Document]) -> list[str]:
    """The names of the schedules in the files; UserError says what is wrong with one, but for its calendars."""
    if not any(document.has_schedules for document in documents):
        return []
    from accsd.cli.schedules.files import schedules_of
    from accsd.explain.schedule_definitions import check_expressions

    found = schedules_of(documents)
    for schedule in found:
        check_expressions(schedule)
        if schedule.has_times:
            schedule.timing(id=schedule.name, created_at=datetime.now(UTC), anchor=None, calendars={}).rule()
    return [schedule.name for schedule in found]


def _checked(documents: Iterable[Document], *, warn: bool = False) -> list[WorkflowDef]:
    """Reads all workflows; all mistakes are in one message. `warn`: says what is sound and perhaps not meant."""
    sound: list[WorkflowDef] = []
    refusals: list[WorkflowInvalid] = []
    for document in _of_workflows(documents):
        try:
            sound.append(document.with_sources(document.checked()))
            _warn(document.warnings(sound[-1]) if warn else ())
        except WorkflowInvalid as error:
            refusals.append(error)
    _refuse_all(refusals)
    _refuse_twins(sound)
    return sound


async def _bound(db: Database, documents: Iterable[Document], wanted: Iterable[WorkflowDef]) -> list[WorkflowDef]:
    """The workflows of these documents with the tools that there are; all mistakes are in one message."""
    bound: list[WorkflowDef] = []
    refusals: list[WorkflowInvalid] = []
    for document, workflow in zip(_of_workflows(documents), wanted, strict=True):
        try:
            bound.append(await bound_workflow(db, workflow, by=operator()))
        except WorkflowInvalid as error:
            refusals.append(document.refused(error))
    _refuse_all(refusals)
    return bound


def _of_workflows(documents: Iterable[Document]) -> Iterator[Document]:
    return (document for document in documents if document.is_workflow)


def _refuse_all(refusals: Sequence[WorkflowInvalid]) -> None:
    if refusals:
        hints = [refusal.hint for refusal in refusals if refusal.hint]
        hint = "; ".join(hints) or "correct it, then `accsd workflows check` again"
        raise WorkflowInvalid("\n".join(refusal.message for refusal in refusals), hint=hint)


def _refuse_twins(wanted: Iterable[WorkflowDef]) -> None:
    seen: set[tuple[str, int | None]] = set()
    for workflow in wanted:
        named = (workflow.name, workflow.version if "version" in workflow.model_fields_set else None)
        if named in seen:
            raise WorkflowInvalid(
                f'two files define the workflow "{workflow.name}"', hint="give them versions of their own"
            )
        seen.add(named)


def _asked_for_services(
    ctx: click.Context, documents: Sequence[Document], wanted: Sequence[WorkflowDef], *, required: bool
) -> list[str]:
    async def work(db: Database) -> list[str]:
        return await _missing_services(db, await _bound(db, documents, wanted))

    try:
        if not required and settings_of(ctx).database.url is None:
            return []
        return with_database(ctx, work)
    except (Unavailable, UserError) as error:
        if required or isinstance(error, WorkflowInvalid):
            raise
        return [f"services were not checked: {error}"]


async def _missing_services(db: Database, wanted: Iterable[WorkflowDef]) -> list[str]:
    """Services that no node offers, as sentences: a node may register later."""
    offered = await workflow_views.offered_services(db)
    if offered is None:
        return ["no node has registered yet: the steps wait until `accsd --role agent` runs on one that offers them"]
    asked = dict.fromkeys(
        step.service for workflow in wanted for step in workflow.steps if step.service != TOOL_SERVICE
    )
    return [f"no node offers service {name}{did_you_mean(name, offered)}" for name in asked if name not in offered]


def _warn(sentences: Iterable[str]) -> None:
    for sentence in sentences:
        say(f"warning: {sentence}", err=True)


@workflows.command("list")
@click.option("--all", "every_version", is_flag=True, help="Every version, not only the newest of each.")
@output_option()
@click.pass_context
def list_command(ctx: click.Context, every_version: bool, output: str) -> None:
    """List the workflows: the newest version of each.

    \b
    Example: accsd workflows list -o name
    """
    rows = with_database(ctx, lambda db: workflow_views.workflows(db, every_version=every_version))
    columns = {"name": "name", "version": "version", "steps": "steps", "is_active": "active", "updated_at": "updated"}
    columns |= {"title": "title"} if any(row.title for row in rows) else {}
    columns |= {"created_by": "by"} | ({"paused_at": "paused"} if any(row.paused_at for row in rows) else {})
    empty = "no workflows yet: `accsd workflows apply FILE` brings one in"
    show([asdict(row) for row in rows], columns, output, name="name", empty=empty)


@workflows.command("show")
@click.argument("name", shell_complete=completion.workflow_names)
@click.option("--version", type=click.IntRange(min=1), help="Another version than the newest.")
@click.option("-o", "--output", type=click.Choice((*FORMATS, "yaml")), default="table", show_default=True)
@click.pass_context
def show_command(ctx: click.Context, name: str, version: int | None, output: str) -> None:
    """Show one workflow: its graph, or with -o yaml a file that `apply` takes.

    \b
    Example: accsd workflows show media
    """
    workflow = with_database(ctx, lambda db: workflow_views.workflow_named(db, name, version))
    match output:
        case "table":
            _draw(workflow)
        case "yaml":
            say(canonical_yaml(workflow.definition()), end="")
        case _:
            show([asdict(workflow)], {}, output, name="name")


def _draw(workflow: StoredWorkflow) -> None:
    definition = workflow.definition()
    facts = [
        f"version {workflow.version}",
        "active" if workflow.is_active else "inactive",
        f"{len(definition.steps)} steps",
        f"updated {since(workflow.updated_at)}" + (f" by {workflow.created_by}" if workflow.created_by else ""),
    ]
    say(f"{workflow.name}  {', '.join(facts)}")
    if workflow.title is not None:
        say(text(workflow.title))
    if workflow.notify:
        say(f"others are told: {', '.join(workflow.notify)}")
    if workflow.options_schema is not None:
        _say_options(workflow.options_schema)
    if definition.files:
        _say_files(definition.files)
    say()
    lines = draw([(step.key, step.depends_on) for step in definition.steps])
    flows = {step.key: _flow(step) for step in definition.steps}
    cells = {
        step.key: [*_cells(step), *([flows[step.key]] if any(flows.values()) else [])] for step in definition.steps
    }
    headings = ("step", "service", "attempts", "timeout", "needs", *(["data"] if any(flows.values()) else []))
    for line in aligned(lines, cells, headings, styled):
        say(line)


def _say_options(schema: Mapping[str, Any]) -> None:
    """What a submission may say with -o. The whole schema is in -o yaml."""
    from accsd.explain.options import options_of

    say("options" + (" (others are refused)" if schema.get("additionalProperties") is False else ""))
    known = options_of(schema)
    widths = [max((len(row[column]) for row in known), default=0) for column in range(3)]
    for row in known:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        say(f"  {'  '.join((*cells, row[3]))}".rstrip())


def _say_files(files: Sequence[WorkflowFile]) -> None:
    """What lies in the folder `files` of each task."""
    say("files")
    cells = [
        (file.name, shown_size(file.size or 0), f"sha256 {(file.sha256 or '')[:_DIGEST_SHOWN]}…") for file in files
    ]
    widths = [max(len(row[column]) for row in cells) for column in range(2)]
    for name, size, digest in cells:
        say(f"  {name.ljust(widths[0])}  {size.rjust(widths[1])}  {digest}")


def _cells(step: WorkflowStep) -> list[str]:
    timeout = "" if step.timeout is None else duration(timedelta(seconds=step.timeout))
    return [step.uses or step.service, str(step.max_attempts), timeout, _needs(step)]


def _needs(step: WorkflowStep) -> str:
    """On which nodes the step may run, beside what it may not, and with which files if not with all."""
    needs = [f"node {step.node}"] if step.node else []
    needs += [f"{label}={_plain(value)}" for label, value in step.requires.items()]
    needs += [f"key {step.concurrency_key}×{step.concurrency_limit or 1}"] if step.concurrency_key else []
    needs += [] if step.files is None else [f"files {' '.join(step.files) or 'none'}"]
    return ", ".join(needs)


def _flow(step: WorkflowStep) -> str:
    """Whether and how often it runs, when, and what its results are called."""
    parts = [] if step.if_ is None else [f"if {_expression(step.if_)}"]
    if step.for_each is not None:
        parts.append(f"× for_each {_expression(step.for_each)}")
        parts += [] if step.if_item is None else [f"if_item {_expression(step.if_item)}"]
        parts += [] if step.max_parallel is None else [f"{step.max_parallel} at once"]
        parts += [] if step.tolerate is None else [f"{step.tolerate} may fail"]
    if step.delay is not None:
        later = duration(timedelta(seconds=step.delay)) if isinstance(step.delay, float | int) else step.delay
        parts.append(f"after {_expression(later)}")
    if step.cache is not None:
        parts.append(f"cached for {duration(timedelta(seconds=step.cache.for_))}")
    return ", ".join([*parts, *([f"as {step.save_as}"] if step.save_as else [])])


def _expression(written: Any) -> str:
    text = written if isinstance(written, str) else to_json(written)
    return cut(text.removeprefix("${").removesuffix("}") if text.startswith("${") else text, _LONGEST_EXPRESSION)


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@workflows.command("pause")
@click.argument("name", shell_complete=completion.workflow_names)
@reason_option
@click.pass_context
def pause_command(ctx: click.Context, name: str, reason: str | None) -> None:
    """Let nobody begin a task of a workflow, whichever its version. What runs goes on.

    \b
    Example: accsd workflows pause media --reason "the new codec is broken"
    """
    pause_one(ctx, _SUBJECT, name, reason)


@workflows.command("resume")
@click.argument("name", shell_complete=completion.workflow_names)
@reason_option
@click.pass_context
def resume_command(ctx: click.Context, name: str, reason: str | None) -> None:
    """Let the tasks of a workflow begin again."""
    resume_one(ctx, _SUBJECT, name, reason)


async def _look(db: Database, name: str) -> Paused:
    await workflow_views.workflow_named(db, name)
    found = await workflow_views.pause_of(db, name)
    return Paused(found.live, found.paused_for, found.by, found.reason)


_SUBJECT = Subject(Pausable.WORKFLOW, _look)


@workflows.command("forget-cache")
@click.argument("name", shell_complete=completion.workflow_names)
@click.option("--step", metavar="STEP", help="Only the results of this step.")
@click.pass_context
def forget_cache_command(ctx: click.Context, name: str, step: str | None) -> None:
    """Forget the results that steps with cache would use again, whichever the version. The next jobs run these steps.

    What runs now is forgotten too. `accsd submit --no-cache` leaves the cache to others and runs one job without it.

    \b
    Example: accsd workflows forget-cache media --step probe
    """

    async def work(db: Database) -> int:
        found = await workflow_views.workflow_named(db, name)
        keys = [each.key for each in found.definition().steps]
        forgotten = await forget_results(db, name, step)
        if step is not None and step not in keys and not forgotten:
            raise NotFound(f'workflow "{name}" has no step "{step}"{did_you_mean(step, keys)}')
        return forgotten

    forgotten = with_database(ctx, work)
    say(f"{forgotten} cached result{'s' if forgotten != 1 else ''} forgotten")


@workflows.command("diff")
@_files
@click.pass_context
def diff_command(ctx: click.Context, files: Sequence[str]) -> None:
    """Compare files with what is applied: with the version that they name, or else with the newest.

    Schedules that the files have are compared, too, as `accsd schedules apply --dry-run` does. Exit code 0 when all
    are the same, 1 when something differs.

    \b
    Example: accsd workflows diff media.yaml
    """
    documents = workflow_files.read(files)
    wanted, _ = workflow_objects.hashed(_checked(documents))
    has_schedules = bool(_check_schedules(documents))

    async def work(db: Database) -> list[tuple[WorkflowDef, StoredWorkflow | None]]:
        found = [await stored.find_workflow(db, one.name, _named_version(one)) for one in wanted]
        return [(await bound_workflow(db, one), each) for one, each in zip(wanted, found, strict=True)]

    lines = [line for workflow, found in with_database(ctx, work) for line in _difference(workflow, found)]
    for line in lines:
        say(_coloured(line))
    if (has_schedules and _schedules_differ(ctx, documents)) or lines:
        raise SystemExit(1)


def _schedules_differ(ctx: click.Context, documents: Sequence[Document]) -> bool:
    """Says how."""
    from accsd.cli.schedules.files import different, tell_applied

    spread = settings_of(ctx).scheduler.spread
    found = with_database(ctx, lambda db: different(db, documents, spread))
    tell_applied(found, "table", dry_run=True)
    return bool(found)


def _named_version(workflow: WorkflowDef) -> int | None:
    return workflow.version if "version" in workflow.model_fields_set else None


def _difference(workflow: WorkflowDef, found: StoredWorkflow | None) -> list[str]:
    """Compares canonical YAML: the order of fields, comments and written defaults make no difference."""
    version = _named_version(workflow) or (1 if found is None else found.version)
    after = canonical_yaml(workflow.model_copy(update={"version": version}))
    before = "" if found is None else canonical_yaml(found.definition())
    applied = "nothing" if found is None else f"{found.name} version {found.version}"
    return list(
        difflib.unified_diff(
            before.splitlines(), after.splitlines(), f"applied: {applied}", f"file: {workflow.name}", lineterm=""
        )
    )


def _coloured(line: str) -> Shown:
    return styled(line, {"+": "green", "-": "red", "@": "cyan"}.get(line[:1]))
