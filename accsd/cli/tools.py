"""`accsd tools`: what steps may use, with the types of what they take and give."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, cast

import click
import yaml
from pydantic import ValidationError

from accsd.cli import workflow_files
from accsd.cli.changes import reason_option
from accsd.cli.output import FORMATS, output_option, say, show
from accsd.cli.session import operator, with_database
from accsd.cli.workflow_files import Document
from accsd.db.answers import Verdict
from accsd.db.pool import Database
from accsd.db.tools import WrittenTool, find_tools, no_such_tool, put_tool, retire_tool, tool_offers
from accsd.errors import InvalidValue, NotFound, Place
from accsd.explain.tools import offer_state
from accsd.model.tool import ToolDef
from accsd.values.validation import problems

_files = click.argument("files", nargs=-1, required=True, metavar="FILE…")


@click.group()
def tools() -> None:
    """List, show, apply, accept and retire tools: typed work that the steps of workflows use.

    \b
    A file is YAML, JSON or TOML:
      name: media.probe
      service: prober
      input_schema:
        required: [url]
        properties: {url: {type: string, format: uri}}
      output_schema:
        required: [seconds]
        properties: {seconds: {type: number}}
      defaults: {timeout: 2m, max_attempts: 5}

    A step then says `uses: media.probe` and `with: {url: …}` instead of a service.
    """


@tools.command("list")
@click.option("--all", "every_version", is_flag=True, help="Every version, and retired tools.")
@click.option("--offered", is_flag=True, help="What nodes offer instead, and what became of it.")
@output_option()
@click.pass_context
def list_command(ctx: click.Context, every_version: bool, offered: bool, output: str) -> None:
    """List the tools: the newest version of each.

    \b
    accsd tools list
    accsd tools list --offered
    """
    if offered:
        columns = {"name": "name", "node": "node", "service": "service", "state": "state"}
        rows = with_database(ctx, _offered)
        show(rows, columns, output, name="name", empty="no node offers a tool; docs/tools.md says how one does")
        return
    found = with_database(ctx, find_tools)
    if not every_version:
        newest: dict[str, ToolDef] = {}
        for tool in found:
            if tool.is_active:
                newest.setdefault(tool.name, tool)
        found = list(newest.values())
    columns = {"name": "name", "version": "version", "kind": "kind", "service": "service", "description": "description"}
    columns |= {"is_active": "active"} if every_version else {}
    show([_row(tool) for tool in found], columns, output, name="name", empty="no tools")


async def _offered(db: Database) -> list[dict[str, Any]]:
    offers, known = await tool_offers(db), await find_tools(db)
    return [{**asdict(offer), "state": offer_state(offer, known)} for offer in offers]


def _row(tool: ToolDef) -> dict[str, Any]:
    return tool.model_dump(mode="json") | {"service": tool.runs_on}


@tools.command("show")
@click.argument("name")
@click.option("-o", "--output", type=click.Choice((*FORMATS, "yaml")), default="table", show_default=True)
@click.pass_context
def show_command(ctx: click.Context, name: str, output: str) -> None:
    """Show one tool, NAME or NAME@VERSION: what it takes and gives; with -o yaml a file that `apply` takes.

    \b
    Example: accsd tools show accs.submit
    """
    tool = with_database(ctx, lambda db: _named(db, name))
    match output:
        case "table":
            _tell(tool)
        case "yaml":
            say(yaml.safe_dump(_written(tool), sort_keys=False, allow_unicode=True, width=100), end="")
        case _:
            show([_row(tool)], {}, output, name="name")


async def _named(db: Database, name: str) -> ToolDef:
    plain, _, version = name.partition("@")
    found = [tool for tool in await find_tools(db, [plain]) if not version or str(tool.version) == version]
    if not found:
        raise await no_such_tool(db, name)
    return next((tool for tool in found if tool.is_active), found[0])


def _written(tool: ToolDef) -> dict[str, Any]:
    document = tool.model_dump(mode="json", exclude_defaults=True, exclude={"version", "is_active"})
    if defaults := tool.defaults.model_dump(mode="json", exclude_none=True):
        document["defaults"] = defaults
    return document


def _tell(tool: ToolDef) -> None:
    from accsd.explain.options import options_of

    say(f"{tool.reference}  {tool.kind}, done by {tool.runs_on}{'' if tool.is_active else ', retired'}")
    if tool.description:
        say(tool.description)
    for title, schema in (("takes", tool.input_schema), ("gives", tool.output_schema)):
        if schema is None:
            continue
        say(f"\n{title}")
        for cells in options_of(schema) or [("anything", "", "", "")]:
            say(f"  {'  '.join(cell for cell in cells if cell)}")


@tools.command("apply")
@_files
@reason_option
@output_option()
@click.pass_context
def apply_command(ctx: click.Context, files: Sequence[str], reason: str | None, output: str) -> None:
    """Write the tools of files or folders (- is stdin). What differs from the newest version becomes the next one.

    Workflows keep the version that they were written with: apply them again to take the new one.

    \b
    Example: accsd tools apply tools/
    """
    wanted = [tool for document in workflow_files.read(files) for tool in _tools(document)]

    async def work(db: Database) -> list[WrittenTool]:
        async with db.acquire() as connection, connection.transaction():
            within = Database.over(connection, like=db)
            return [await put_tool(within, tool, by=operator(), reason=reason) for tool in wanted]

    written = with_database(ctx, work)
    if output != "table":
        rows = [{"name": each.name, "version": each.version, "change": _change(each)} for each in written]
        show(rows, {}, output, name="name")
        return
    for each in written:
        say(f"{each.name} version {each.version} {_change(each)}")


def _change(written: WrittenTool) -> str:
    return "unchanged" if written.verdict is Verdict.REPEATED else "written"


def _tools(document: Document) -> list[ToolDef]:
    """One tool, or those that stand under `tools`. InvalidValue, with file and line."""
    document.refuse_doubles()
    value: Any = document.value
    several = isinstance(value, dict) and "tools" in value
    entries: Any = cast("dict[str, Any]", value)["tools"] if several else [value]
    if not isinstance(entries, list):
        raise InvalidValue(f"{document.file}: tools must be a list")
    found: list[ToolDef] = []
    complaints: list[tuple[Place, str]] = []
    for number, entry in enumerate(cast("list[Any]", entries)):
        at: Place = ("tools", number) if several else ()
        try:
            found.append(ToolDef.model_validate(entry))
        except ValidationError as error:
            complaints += [((*at, *each.place), str(each)) for each in problems(error, ToolDef, most=20)]
    if complaints:
        raise InvalidValue("\n".join(document.located(complaints)), hint="`accsd tools --help` shows what a file says")
    return found


@tools.command("accept")
@click.argument("name")
@click.option("--node", help="Of this node, where several offer it in different words.")
@click.option("--service", help="Of this service, where several offer it.")
@reason_option
@click.pass_context
def accept_command(ctx: click.Context, name: str, node: str | None, service: str | None, reason: str | None) -> None:
    """Make a tool of what a node offers. It is checked as a file of `apply` is; what differs from the newest version
    becomes the next one.

    \b
    accsd tools list --offered
    accsd tools accept media.probe --node render-3
    """

    async def work(db: Database) -> WrittenTool:
        return await put_tool(db, await _wanted(db, name, node, service), by=operator(), reason=reason)

    written = with_database(ctx, work)
    say(f"{written.name} version {written.version} {_change(written)}")


async def _wanted(db: Database, name: str, node: str | None, service: str | None) -> ToolDef:
    offers = [
        offer for offer in await tool_offers(db, name=name, node=node) if service is None or offer.service == service
    ]
    if not offers:
        whose = "no node offers" if node is None else f"{node} does not offer"
        by = "" if service is None else f" of the service {service}"
        raise NotFound(f'{whose} a tool "{name}"{by}', hint="`accsd tools list --offered` shows what is offered")
    different = [offer for offer in offers if offer.document != offers[0].document]
    if different:
        raise InvalidValue(
            f'the tool "{name}" is offered by {offers[0].node} ({offers[0].service}) and by {different[0].node}'
            f" ({different[0].service}), and they differ",
            hint=f"`accsd tools accept {name} --node {offers[0].node} --service {offers[0].service}` takes the first",
        )
    return offers[0].tool()


@tools.command("retire")
@click.argument("name")
@reason_option
@click.pass_context
def retire_command(ctx: click.Context, name: str, reason: str | None) -> None:
    """Let no new workflow use a tool, NAME or NAME@VERSION. What uses it goes on.

    \b
    Example: accsd tools retire media.probe@1
    """
    plain, _, version = name.partition("@")
    if version and not version.isdecimal():
        raise InvalidValue(f"{name}: a version is a whole number")
    number = int(version) if version else None
    verdict = with_database(ctx, lambda db: retire_tool(db, plain, number, by=operator(), reason=reason))
    say(f"{name} {'was retired before' if verdict is Verdict.REPEATED else 'is retired'}")
