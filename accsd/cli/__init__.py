"""The `accsd` command. Each group of subcommands is a module of its own, imported only when it is called:
`accsd --help` must not wait for a database driver."""

import importlib
import sys
from typing import Any, Final, NoReturn

import click
from click.shell_completion import CompletionItem

from accsd import __version__
from accsd.errors import AccsdError, Bug, ConfigError, InvalidValue, NotFound, Unavailable

_BUG: Final = 70
_LONGEST_BUG: Final = 500

# name → (module, attribute, help); the help stands here so that the list needs no import
_COMMANDS: Final = {
    "demo": (
        "accsd.cli.demo",
        "demo",
        "See it work: two jobs, a power cut and a machine that is woken, in one minute.",
    ),
    "up": ("accsd.cli.up", "up", "Run everything here, PostgreSQL included: builder, agent and database in one."),
    "workflows": ("accsd.cli.workflows", "workflows", "Apply, check, list, show, compare and pause workflows."),
    "tools": ("accsd.cli.tools", "tools", "What steps may use: list, show, apply and retire tools."),
    "submit": ("accsd.cli.submit", "submit", "Submit a job of a workflow; wait for it or follow it."),
    "jobs": ("accsd.cli.jobs", "jobs", "List jobs, newest first."),
    "job": ("accsd.cli.job", "job", "Show one job: its steps, attempts and timeline."),
    "cancel": ("accsd.cli.cancel", "cancel", "Cancel jobs, running tasks included."),
    "retry": ("accsd.cli.retry", "retry", "Run a finished job again, or from one step on."),
    "dead": ("accsd.cli.dead", "dead", "Tasks that failed for good: list them, send them back to work, dismiss them."),
    "db": ("accsd.cli.db", "db", "Install, look at and upgrade the schema in PostgreSQL."),
    "audit": ("accsd.cli.audit", "audit", "Who did what, when, by which way and why: the newest first."),
    "artifacts": ("accsd.cli.artifacts", "artifacts", "List what a job has put out, and download it."),
    "completion": ("accsd.cli.completion", "completion", "Print what makes a shell complete these commands."),
    "conditions": (
        "accsd.cli.conditions",
        "conditions",
        "Values that start a job when they cross a threshold: list them, show one, report a sample.",
    ),
    "config": ("accsd.cli.config", "config", "Show the settings and where each comes from; check them."),
    "doctor": ("accsd.cli.doctor", "doctor", "Check everything that accsd needs on this machine, and say what to do."),
    "emit": ("accsd.cli.emit", "emit", "Emit an event, for the schedules that listen to its topic."),
    "events": ("accsd.cli.events", "events", "List events and what each one caused; follow them; replay them."),
    "history": (
        "accsd.cli.history",
        "history",
        "What outlives the database: archive months of events, verify archives, remove finished jobs.",
    ),
    "logs": ("accsd.cli.logs", "logs", "Show what the tasks of a job have written; follow it with -f."),
    "mcp": ("accsd.cli.mcp", "mcp", "Serve an assistant over standard input and output (Model Context Protocol)."),
    "nodes": (
        "accsd.cli.nodes",
        "nodes",
        "List the machines and why each is awake or not; wake, sleep, drain and resume them.",
    ),
    "open": ("accsd.cli.open", "open_link", "Make a link that logs in to the web page, once, within a minute."),
    "outbox": ("accsd.cli.outbox", "outbox", "What others are told about jobs: list it, show it, send it again."),
    "run": ("accsd.cli.run", "run", "Run a command on this machine, now, as a job: history, log, exit code."),
    "schedules": (
        "accsd.cli.schedules.group",
        "schedules",
        "What starts jobs by itself: make, preview, pause and account for schedules.",
    ),
    "sdk": ("accsd.cli.sdk", "sdk", "Copy what a service imports into the folder of an image without accsd."),
    "services": ("accsd.cli.services", "services", "List the services and what waits for them; pause and resume them."),
    "simulate": (
        "accsd.cli.simulate",
        "simulate",
        "Rehearse a fleet on virtual time: hours awake, energy, waits; compare policies.",
    ),
    "tokens": (
        "accsd.cli.tokens",
        "tokens",
        "What lets programs and people in over HTTP: make, list and revoke tokens.",
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
        """Offers names without importing the commands: that takes longer than a person waits for a key."""
        named = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [*(CompletionItem(name, help=_COMMANDS[name][2]) for name in named), *options]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _COMMANDS[name][2]) for name in self.list_commands(ctx)])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in _COMMANDS and not args[0].startswith("-") and not ctx.resilient_parsing:
            raise click.exceptions.NoSuchCommand(args[0], possibilities=_COMMANDS, ctx=ctx)
        return super().resolve_command(ctx, args)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        try:
            return super().make_context(info_name, args, parent, **extra)
        except click.ClickException as error:
            _end_with(error, None)

    def invoke(self, ctx: click.Context) -> Any:
        """The one place where an error becomes a message, the next thing to do, and an exit code."""
        try:
            return super().invoke(ctx)
        except (click.exceptions.Exit, click.Abort, EOFError, BrokenPipeError):
            raise  # click's own ends, and a reader that has gone
        except Exception as error:
            if ctx.invoked_subcommand is None and not isinstance(error, (AccsdError, click.ClickException)):
                raise  # the daemon: its log is read by those who want the traceback
            _end_with(error, ctx)


def _end_with(error: Exception, ctx: click.Context | None) -> NoReturn:
    from accsd.cli.output import say

    said, hint, code = _told(error)
    say(f"accsd: {said}", err=True)
    if hint:
        say(f"  → {hint}", err=True)
    if code == _BUG and ctx is not None and ctx.params["debug"]:
        import traceback

        say("".join(traceback.format_exception(error)), err=True, end="")
    sys.exit(code)


def _told(error: Exception) -> tuple[str, str | None, int]:
    """Returns what happened, what to do next, and the exit code."""
    match error:
        case AccsdError():
            return str(error), error.hint, _exit_code(error)
        case click.ClickException():
            within = error.ctx if isinstance(error, click.UsageError) else None
            hint = None if within is None else f"`{within.command_path} --help` says what it takes"
            return _in_our_words(error.format_message()), hint, error.exit_code
        case _:
            what = " ".join(f"{type(error).__name__}: {error}".split())
            hint = "this is a bug of accsd: please report it, with what the same command says after ACC_DEBUG=1"
            return f"something went wrong that nobody has foreseen: {what[:_LONGEST_BUG]}", hint, _BUG


def _in_our_words(message: str) -> str:
    """Click's sentences begin in upper case and end with a dot; ours follow a colon."""
    return message[:1].lower() + message[1:].removesuffix(".")


def _exit_code(error: AccsdError) -> int:
    """0 ok, 1 the work failed, 2 usage, 3 not found, 4 unreachable, 5 timeout, 70 a bug of accsd (EX_SOFTWARE)."""
    if isinstance(error.__cause__, TimeoutError):
        return 5
    match error:
        case ConfigError() | InvalidValue():
            return 2
        case NotFound():
            return 3
        case Unavailable():
            return 4
        case Bug():
            return _BUG
        case _:
            return 1


log_format_option = click.option(
    "--log-format",
    type=click.Choice(["auto", "json", "text"]),
    help="How the daemon writes its log: auto is text on a terminal and json elsewhere.  [default: log_format, auto]",
)


@click.group(
    "accsd", cls=_LazyGroup, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, prog_name="accsd")
@click.option(
    "--role",
    type=click.Choice(["builder", "agent", "gateway", "all"]),
    default="all",
    show_default=True,
    help="Without a command, run the daemon: builder on the control host, agent on a node, gateway for HTTP, or all.",
)
@click.option(
    "--config", type=click.Path(exists=True, dir_okay=False), help="TOML file; the environment goes before it."
)
@log_format_option
@click.option("--debug", is_flag=True, envvar="ACC_DEBUG", help="If a command meets a bug of accsd, show where.")
@click.pass_context
def main(ctx: click.Context, role: str, config: str | None, log_format: str | None, debug: bool) -> None:
    """Run multi-step workflows on machines that may be asleep. PostgreSQL is all that it needs.

    Without a command this is the daemon. SIGTERM drains it, SIGHUP makes it read its configuration again.

    The database is named by ACC_DB_URL, or by database.url in the --config file.

    \b
    A command ends with exit code
      0   done
      1   not done, or refused
      2   wrong usage or settings
      3   not found
      4   the database, the object store or Docker does not answer
      5   not within the time that was given
      70  a bug of accsd
    """
    del debug  # invoke reads it, when it is wanted
    ctx.obj = config
    if ctx.invoked_subcommand is None:
        from accsd.cli.daemon import run

        run(role, config, log_format=log_format)
