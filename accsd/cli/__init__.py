"""The `accsd` command. Each group of subcommands is a module of its own, imported only when it is called:
`accsd --help` must not wait for a database driver."""

import importlib
import sys
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from accsd import __version__

# name → (module, attribute, help); the help stands here so that the list needs no import
_COMMANDS: Final = {
    "demo": (
        "accsd.cli.demo",
        "demo",
        "See it work: two jobs, a power cut and a machine that is woken, in one minute.",
    ),
    "up": ("accsd.cli.up", "up", "Run everything here, PostgreSQL included: builder, agent and database in one."),
    "workflows": ("accsd.cli.workflows", "workflows", "Apply, check, list, show, compare and pause workflows."),
    "submit": ("accsd.cli.submit", "submit", "Submit a job of a workflow; wait for it or follow it."),
    "jobs": ("accsd.cli.jobs", "jobs", "List jobs, newest first."),
    "job": ("accsd.cli.job", "job", "Show one job: its steps, attempts and timeline."),
    "cancel": ("accsd.cli.changing", "cancel", "Cancel jobs, running tasks included."),
    "retry": ("accsd.cli.changing", "retry", "Run a finished job again, or from one step on."),
    "dead": ("accsd.cli.dead", "dead", "Tasks that failed for good: list them, send them back to work, dismiss them."),
    "db": ("accsd.cli.db", "db", "Install, look at and upgrade the schema in PostgreSQL."),
    "artifacts": ("accsd.cli.artifacts", "artifacts", "List what a job has put out, and download it."),
    "completion": ("accsd.cli.completion", "completion", "Print what makes a shell complete these commands."),
    "config": ("accsd.cli.config", "config", "Show the settings and where each comes from; check them."),
    "doctor": ("accsd.cli.doctor", "doctor", "Check everything that accsd needs on this machine, and say what to do."),
    "history": (
        "accsd.cli.history",
        "history",
        "What outlives the database: archive months of events, verify archives, remove finished jobs.",
    ),
    "logs": ("accsd.cli.logs", "logs", "Show what the tasks of a job have written; follow it with -f."),
    "nodes": (
        "accsd.cli.nodes",
        "nodes",
        "List the machines and why each is awake or not; wake, sleep, drain and resume them.",
    ),
    "outbox": ("accsd.cli.outbox", "outbox", "What others are told about jobs: list it, show it, send it again."),
    "services": ("accsd.cli.services", "services", "List the services and what waits for them; pause and resume them."),
    "simulate": (
        "accsd.cli.simulate",
        "simulate",
        "Rehearse a fleet on virtual time: hours awake, energy, waits; compare policies.",
    ),
    "top": ("accsd.cli.top", "top", "Watch the fleet: services, nodes, what runs, what failed."),
    "why": ("accsd.cli.why", "why", "Say why a job or task does not run: every blocker, and what to do."),
}


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, attribute, _ = _COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Without the commands themselves: they take longer to import than a person waits for a key."""
        named = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [*(CompletionItem(name, help=_COMMANDS[name][2]) for name in named), *options]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _COMMANDS[name][2]) for name in self.list_commands(ctx)])

    def invoke(self, ctx: click.Context) -> Any:
        """One place where an error of ours becomes a message, the next thing to do, and an exit code."""
        from accsd.errors import AccsdError

        try:
            return super().invoke(ctx)
        except AccsdError as error:
            click.echo(f"accsd: {error}", err=True)
            if error.hint:
                click.echo(f"  → {error.hint}", err=True)
            sys.exit(_exit_code(error))


def _exit_code(error: Exception) -> int:
    """0 ok, 1 the work failed, 2 usage, 3 not found, 4 unreachable, 5 timeout."""
    from accsd.errors import ConfigError, InvalidValue, NotFound, Unavailable

    if isinstance(error.__cause__, TimeoutError):
        return 5
    match error:
        case ConfigError() | InvalidValue():
            return 2
        case NotFound():
            return 3
        case Unavailable():
            return 4
        case _:
            return 1


@click.group(cls=_LazyGroup, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="accsd")
@click.option(
    "--role",
    type=click.Choice(["builder", "agent", "all"]),
    default="all",
    show_default=True,
    help="Without a command, run the daemon: builder on the control host, agent on a node, or both.",
)
@click.option(
    "--config", type=click.Path(exists=True, dir_okay=False), help="TOML file; the environment goes before it."
)
@click.pass_context
def main(ctx: click.Context, role: str, config: str | None) -> None:
    """Run multi-step workflows on machines that may be asleep. PostgreSQL is all that it needs.

    Without a command this is the daemon. SIGTERM drains it, SIGHUP makes it read its configuration again.

    The database is named by ACC_DB_URL, or by database.url in the --config file.
    """
    ctx.obj = config
    if ctx.invoked_subcommand is None:
        from accsd.cli.daemon import run

        run(role, config)
