"""Writes docs/reference/ (settings from the example file, commands from their own --help) and, into docs/daemon.md, the
roles from their tables. `make reference` calls it, and a test holds the files equal to what it writes."""

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from accsd.agent.roles import ROLES as AGENT_ROLES  # noqa: E402 - the package lies beside this folder
from accsd.builder.roles import ROLES as BUILDER_ROLES  # noqa: E402
from accsd.cli import main  # noqa: E402
from accsd.roles import Role  # noqa: E402

_LINE = re.compile(r"^#?(?P<name>[a-z_]+) = (?P<value>.*?)\s+# (?P<meaning>.*)$")
_VARIABLE = re.compile(r"\((ACC_[A-Z_]+)[^)]*\)")


def settings_page() -> str:
    lines = [
        "# Settings",
        "",
        "Generated from [config/accsd.example.toml](../../config/accsd.example.toml) by `make reference`. The",
        "environment goes before secret files (`ACC_DB_URL_FILE`, systemd credentials), which go before the TOML",
        "file of `--config`.",
    ]
    for section, rows in _sections((ROOT / "config" / "accsd.example.toml").read_text(encoding="utf-8")):
        lines += ["", f"## {section}", "", "| setting | value shown | variable | meaning |", "|---|---|---|---|"]
        lines += [f"| `{name}` | `{value}` | {variable} | {meaning} |" for name, value, variable, meaning in rows]
    return "\n".join(lines) + "\n"


def _sections(text: str) -> Iterator[tuple[str, list[tuple[str, str, str, str]]]]:
    section, rows = "top level", []
    for line in text.splitlines():
        if line.startswith(("[", "#[")):
            yield section, rows
            section, rows = line.strip("#").partition("#")[0].strip(), []
        elif match := _LINE.match(line):
            variable = _VARIABLE.search(match["meaning"])
            meaning = _VARIABLE.sub("", match["meaning"]).strip().replace("|", "\\|")
            rows.append(
                (match["name"], match["value"].replace("|", "\\|"), f"`{variable[1]}`" if variable else "", meaning)
            )
    yield section, rows


def commands_page() -> str:
    lines = ["# Commands", "", "Generated from the commands' own `--help` by `make reference`.", ""]
    for path, command in _commands("accsd", main, click.Context(main, info_name="accsd", **main.context_settings)):
        lines += [f"## {path}", "", "```text", command, "```", ""]
    return "\n".join(lines)


def _commands(path: str, command: click.Command, ctx: click.Context) -> Iterator[tuple[str, str]]:
    yield path, command.get_help(ctx).rstrip()
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            inner = command.get_command(ctx, name)
            if inner is not None and not inner.hidden:
                yield from _commands(f"{path} {name}", inner, click.Context(inner, info_name=name, parent=ctx))


_TABLES = {"builder": BUILDER_ROLES, "agent": AGENT_ROLES}
_ROLES = re.compile(r"(<!-- roles: (?P<table>\w+) -->\n).*?(?=<!-- end of roles -->)", re.DOTALL)


def daemon_page() -> str:
    """As it stands, with the tables of roles written anew."""
    text = (ROOT / "docs" / "daemon.md").read_text(encoding="utf-8")
    return _ROLES.sub(lambda found: found[1] + _roles(_TABLES[found["table"]]), text)


def _roles(roles: Iterable[Role[Any]]) -> str:
    rows = ["| role | what it does | leaves |", "|---|---|---|"]
    for role in roles:
        name = role.name if role.each is None else f"{role.name}NAME"
        rows.append(f"| `{name}` | {role.does} | {role.leaves.value} |")
    return "\n".join(rows) + "\n"


PAGES = {"settings.md": settings_page, "commands.md": commands_page}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (ROOT / "docs" / "reference" / name).write_text(page(), encoding="utf-8")
    (ROOT / "docs" / "daemon.md").write_text(daemon_page(), encoding="utf-8")
