"""Every command, found by walking them, with whatever its options and arguments may be given, on a database that holds
hostile texts: an exit code that the documents know, no traceback, and nothing that a terminal would obey."""

import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import click
import pytest
from click.testing import CliRunner

from accsd.cli import main
from tests.fuzz.cases import Run, at_length, contained
from tests.fuzz.fleet import STORED, populate
from tests.fuzz.values import integer, json_text, text
from tests.support.cluster import Connection

# 0 done, 1 the work failed, 2 usage, 3 not found, 4 unreachable, 5 timeout
EXIT_CODES = range(6)
# These run until somebody ends them, build a world of their own, or make a login in the whole cluster: only how they
# refuse is tried.
ENDLESS = {(), ("up",), ("demo",), ("run",), ("db", "node-login")}
ALWAYS_WITH: dict[tuple[str, ...], list[str]] = {("top",): ["--once"], ("nodes", "sleep"): ["--timeout", "100ms"]}
# What reads and shows most of what others wrote is called more often.
OFTEN = {"job", "jobs", "why", "logs", "artifacts", "top", "dead", "retry"}
# So do commands with these options; a timeout is a way out.
ENDLESS_OPTIONS = {"--watch", "-f", "--follow", "--wait", "--cycle"}

COLOURS = re.compile(r"\x1b\[[0-9;]*m")
OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
IN_JSON = re.compile(r"[\x00-\x08\x0b-\x1f]")

FILES = {
    "good.yaml": "name: filed\nsteps:\n- {key: a, service: render}\n",
    "bad.yaml": f"name: {STORED!a}\nsteps: 5\n",
    "odd.yaml": 'name: "\\e]0;filed\\a"\nsteps:\n- {key: "\\e[2J", service: "\\e]0;x\\a", when: 1}\n',
    "no.json": '{"name": "w", "steps": [',
    "fleet.toml": "[[nodes]]\nname = 'a'\n",
    "trace.csv": "at,service\n",
    "accsd.toml": "[node]\nname = 'n1'\n",
    "wrong.toml": "[node]\nnaem = 'n1'\n",
}


class Command(NamedTuple):
    path: tuple[str, ...]
    parameters: list[click.Parameter]


def commands(group: click.Command = main, path: tuple[str, ...] = ()) -> Iterator[Command]:
    if isinstance(group, click.Group):
        context = click.Context(group)
        for name in group.list_commands(context):
            found = group.get_command(context, name)
            assert found is not None
            yield from commands(found, (*path, name))
        if not group.invoke_without_command:
            return
    yield Command(path, [each for each in group.params if not isinstance(each, click.Option) or not each.is_eager])


COMMANDS = list(commands())


class Call(NamedTuple):
    arguments: list[str]
    stdin: str
    on_terminal: bool

    @property
    def command(self) -> str:
        return " ".join([each for each in self.arguments if each.isalpha()][:2])

    @property
    def is_clean(self) -> bool:
        return not any(OBEYED.search(each) for each in (*self.arguments, self.stdin))


def made(random: Random, known: dict[str, list[str]]) -> Call:
    (command,) = random.choices(
        COMMANDS, [3 if command.path[:1] and command.path[0] in OFTEN else 1 for command in COMMANDS]
    )
    arguments = [*command.path, *ALWAYS_WITH.get(command.path, [])]
    if random.random() < 0.05:
        arguments = ["--config", random.choice(("accsd.toml", "wrong.toml")), *arguments]
    if command.path in ENDLESS:
        arguments += random.choice((["--help"], ["--nonsense"], [f"--{text(random)}"], ["--folder"]))
    else:
        arguments += _given(random, command, known)
    if random.random() < 0.05:
        arguments.insert(
            random.randrange(len(command.path), len(arguments) + 1), random.choice(("--help", "--", "--nonsense", ""))
        )
    stdin = random.choice(("", "y\n", "n\n", FILES["good.yaml"], json_text(random)))
    return Call(
        [each.replace("\x00", "").encode("utf-8", "replace").decode() for each in arguments],
        stdin,
        random.random() < 0.7,
    )


def _given(random: Random, command: Command, known: dict[str, list[str]]) -> list[str]:
    options: list[str] = []
    positional: list[str] = []
    for parameter in command.parameters:
        if not isinstance(parameter, click.Option):
            many = random.choice((0, 1, 1, 2)) if parameter.nargs == -1 else int(random.random() < 0.95)
            positional += [_value(random, command, parameter, known) for _ in range(many)]
            continue
        name = random.choice(parameter.opts)
        if ENDLESS_OPTIONS & set(parameter.opts) or random.random() < 0.7:
            continue
        options += [name] if parameter.is_flag else [name, _value(random, command, parameter, known)]
    return [*options, *positional] if random.random() < 0.8 else [*positional, *options]


def _value(random: Random, command: Command, parameter: click.Parameter, known: dict[str, list[str]]) -> str:
    name = (parameter.name or "").lower()
    if isinstance(parameter.type, click.Choice) and random.random() < 0.9:
        return str(random.choice(list(parameter.type.choices)))
    if isinstance(parameter.type, click.Path) or name in ("files", "fleet", "trace"):
        # only in the folder of the case: some of these are written to
        return random.choice(
            (*FILES, ".", "nowhere", text(random, longest=2_000).replace("/", "").lstrip(".-~") or "x")
        )
    if isinstance(parameter.type, click.types.IntParamType):
        return str(random.choice((0, 1, 2, 5, integer(random)))) if random.random() < 0.9 else text(random, longest=100)
    if isinstance(parameter.type, click.types.StringParamType) and random.random() < 0.75:
        kind = "jobs" if "job" in name or name == "subject" else command.path[0] if name == "name" else name
        return random.choice(known.get(kind) or known["words"])
    return random.choice((text(random, longest=20_000), str(integer(random)), json_text(random)[:50_000], "10s", "a=1"))


class Terminal(CliRunner):
    """Says that it is one, so that colours are shown and nothing is stripped; what is ours is left."""

    def __init__(self, on_terminal: bool) -> None:
        super().__init__()
        self.on_terminal: bool = on_terminal

    def isolation(self, *args: Any, **options: Any) -> Any:
        return super().isolation(*args, **options | {"color": self.on_terminal})


def carried_out(call: Call, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder of its own, in which the files lie."""
    monkeypatch.setattr("accsd.cli.output.is_terminal", lambda: call.on_terminal)
    with tempfile.TemporaryDirectory() as folder:
        for name, content in FILES.items():
            Path(folder, name).write_text(content)
        os.chdir(folder)
        environment: dict[str, str | None] = dict.fromkeys(name for name in os.environ if name.startswith("ACC_"))
        environment |= {
            "ACC_DB_URL": url,
            "ACC_STATE_DIR": folder,
            "XDG_STATE_HOME": folder,
            "HOME": folder,
            "TERM": "xterm",
            "COLUMNS": "100",
        }
        result = Terminal(call.on_terminal).invoke(main, call.arguments, input=call.stdin, env=environment)
        os.chdir("/")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code in EXIT_CODES, f"exit code {result.exit_code}: {result.output[-500:]}"
    assert "Traceback (most recent" not in result.output
    if call.on_terminal and call.is_clean:
        for shown in (result.stdout, result.stderr):
            nothing_is_obeyed(call.command, COLOURS.sub("", shown))


def nothing_is_obeyed(command: str, shown: str) -> None:
    obeyed = IN_JSON if shown.lstrip()[:1] in ("{", "[", '"') else OBEYED
    if found := obeyed.search(shown):
        around = shown[max(0, found.start() - 60) : found.end() + 60]
        raise AssertionError(f"a terminal would obey what `{command}` shows: …{around!r}")


@pytest.fixture
async def known(conn: Connection) -> dict[str, list[str]]:
    return await populate(conn)


@at_length(cases=200)
def test_a_command_ends_as_documented_and_a_terminal_obeys_nothing_of_it(
    run: Run, db_url: str, known: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
):
    contained(run, lambda random: made(random, known), lambda call: carried_out(call, db_url, monkeypatch), within=30)
