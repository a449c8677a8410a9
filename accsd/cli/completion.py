"""`accsd completion`, and what a shell then offers for a name: workflows, schedules, jobs, steps, nodes and
services, as the database has them.

A person waits for an offer with a key pressed: it has a second, and whatever goes wrong, nothing is offered and nothing
said.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import click
from click.shell_completion import CompletionItem, ShellComplete, get_completion_class

from accsd.cli.output import say

if TYPE_CHECKING:  # `accsd --help` waits for no database driver
    from accsd.db.pool import Database

_PROGRAM: Final = "accsd"
_PATIENCE_SEC: Final = 1.0
_JOB_PARAMETERS: Final = ("job_id", "job")

Offered = list[CompletionItem]


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that makes a shell complete these commands.

    \b
    eval "$(accsd completion bash)"                                      # now; in ~/.bashrc: always
    accsd completion zsh > ~/.zfunc/_accsd                               # a folder of your fpath
    accsd completion fish > ~/.config/fish/completions/accsd.fish
    """
    from accsd.cli import main

    kind = get_completion_class(shell)
    assert kind is not None, "click knows the three"
    # Not kind.source: for bash that starts one to ask it for its version.
    say(ShellComplete.source(kind(main, {}, _PROGRAM, f"_{_PROGRAM.upper()}_COMPLETE")))


def workflow_names(ctx: click.Context, _: click.Parameter, incomplete: str) -> Offered:
    return _plain(ctx, "SELECT DISTINCT name FROM public.workflows", incomplete)


def node_names(ctx: click.Context, _: click.Parameter, incomplete: str) -> Offered:
    return _plain(ctx, "SELECT name FROM public.nodes", incomplete)


def schedule_names(ctx: click.Context, _: click.Parameter, incomplete: str) -> Offered:
    return _plain(ctx, "SELECT name FROM public.schedules", incomplete)


def calendar_names(ctx: click.Context, _: click.Parameter, incomplete: str) -> Offered:
    return _plain(ctx, "SELECT name FROM public.calendars", incomplete)


def service_names(ctx: click.Context, _: click.Parameter, incomplete: str) -> Offered:
    """The services that a workflow needs or a node offers."""
    return _plain(
        ctx,
        "SELECT service AS name FROM accs.lanes UNION SELECT jsonb_object_keys(max_concurrency) FROM public.nodes",
        incomplete,
    )


def jobs(ctx: click.Context, _: click.Parameter, incomplete: str) -> Offered:
    """The newest jobs, by their short ids, or by their whole ids if one was begun."""
    from accsd.db.views.job_list import JobFilter, list_jobs
    from accsd.explain.words import short

    async def work(db: "Database") -> Offered:
        found: Offered = []
        for job in (await list_jobs(db, JobFilter(), limit=50)).rows:
            name = next((each for each in (short(job.id), str(job.id)) if each.startswith(incomplete)), None)
            if name is not None:
                found.append(CompletionItem(name, help=f"{job.workflow}, {job.status}"))
        return found

    return _asked(ctx, work)


def jobs_and_steps(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> Offered:
    """A job; after a slash, its steps."""
    job, slash, step = incomplete.partition("/")
    if not slash:
        return jobs(ctx, parameter, incomplete)
    return [CompletionItem(f"{job}/{key.value}") for key in _steps_of(ctx, job, step)]


def steps(ctx: click.Context, _: click.Parameter, incomplete: str) -> Offered:
    """The steps of the job that stands in the command line. Behind an option without a value click has not parsed its
    arguments yet: the job is the first of them."""
    sorted_out = (ctx.params.get(name) for name in _JOB_PARAMETERS)
    job = next((each for each in (*sorted_out, *ctx.args) if isinstance(each, str)), None)
    return [] if job is None else _steps_of(ctx, job, incomplete)


def _steps_of(ctx: click.Context, job: str, incomplete: str) -> Offered:
    from accsd.db.views import jobs as job_views
    from accsd.explain.identifiers import job_named

    async def work(db: "Database") -> Offered:
        keys = await job_views.task_ids_of(db, await job_named(db, job))
        return [CompletionItem(key) for key in keys if key.startswith(incomplete)]

    return _asked(ctx, work)


def _plain(ctx: click.Context, names: str, incomplete: str) -> Offered:
    async def work(db: "Database") -> Offered:
        sql = f"SELECT name FROM ({names}) known WHERE starts_with(name, $1) ORDER BY name LIMIT 200"
        return [CompletionItem(row["name"]) for row in await db.fetch(sql, incomplete)]

    return _asked(ctx, work)


def _asked(ctx: click.Context, work: Callable[["Database"], Awaitable[Offered]]) -> Offered:
    from accsd.cli.session import read_settings
    from accsd.db.pool import Database, connect

    async def opened() -> Offered:
        async with asyncio.timeout(_PATIENCE_SEC):
            connection = await connect(settings.database, application="accsd completion")
            try:
                return await work(Database.over(connection))
            finally:
                connection.terminate()

    try:
        settings = read_settings(ctx.find_root().params.get("config"))
        return [item for item in asyncio.run(opened()) if item.value.isprintable()]
    except Exception:  # noqa: BLE001 - an error on the line that somebody is typing helps nobody
        return []
