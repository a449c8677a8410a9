"""Writes what the docs have from the code: docs/reference/ (settings from the example file, commands from their own
--help), and in other pages the tables between <!-- generated: NAME --> and <!-- end -->. `make reference` calls it, and
a test holds the files equal to what it writes."""

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from accsd.agent.roles import ROLES as AGENT_ROLES  # noqa: E402 - the package lies beside this folder
from accsd.builder.roles import ROLES as BUILDER_ROLES  # noqa: E402
from accsd.cli import main  # noqa: E402
from accsd.gateway.app import openapi  # noqa: E402
from accsd.gateway.joblib.app import openapi as openapi_of_joblib  # noqa: E402
from accsd.gateway.ordinaut.app import openapi as openapi_of_ordinaut  # noqa: E402
from accsd.gateway.roles import ROLES as GATEWAY_ROLES  # noqa: E402
from accsd.gateway.seqpulse.app import openapi as openapi_of_seqpulse  # noqa: E402
from accsd.model.outcome import MEANINGS, DatabaseCode, ErrorCode  # noqa: E402
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


def roles_table(roles: Iterable[Role[Any]]) -> str:
    rows = ["| role | what it does | leaves |", "|---|---|---|"]
    for role in roles:
        name = role.name if role.each is None else f"{role.name}NAME"
        rows.append(f"| `{name}` | {role.does} | {role.leaves.value} |")
    return "\n".join(rows) + "\n"


def error_codes_table(codes: Iterable[ErrorCode | DatabaseCode]) -> str:
    rows = ["| code | what happened | what to do | whose fault |", "|---|---|---|---|"]
    rows += [f"| `{code}` | {' | '.join(MEANINGS[code])} |" for code in codes]
    return "\n".join(rows) + "\n"


def openapi_page(described: Callable[[], dict[str, Any]]) -> str:
    return json.dumps(described(), indent=1, ensure_ascii=False, sort_keys=True) + "\n"


DOORS = {"joblib": openapi_of_joblib, "ordinaut": openapi_of_ordinaut, "seqpulse": openapi_of_seqpulse}
PAGES = {
    "reference/settings.md": settings_page,
    "reference/commands.md": commands_page,
    "reference/openapi.json": partial(openapi_page, openapi),
    **{f"reference/openapi-{door}.json": partial(openapi_page, described) for door, described in DOORS.items()},
}
TABLES = {
    "roles of a builder": lambda: roles_table(BUILDER_ROLES),
    "roles of an agent": lambda: roles_table(AGENT_ROLES),
    "roles of a gateway": lambda: roles_table(GATEWAY_ROLES),
    "error codes of attempts": lambda: error_codes_table(ErrorCode),
    "error codes of the database": lambda: error_codes_table(DatabaseCode),
}
_TABLE = re.compile(r"(<!-- generated: (?P<name>[^\n]*) -->\n).*?(?=<!-- end -->)", re.DOTALL)


def pages() -> Iterator[tuple[Path, str]]:
    """Each page that has something of this, as it has to be now."""
    docs = ROOT / "docs"
    for name, page in PAGES.items():
        yield docs / name, page()
    for path in sorted(docs.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        if _TABLE.search(text):
            yield path, _TABLE.sub(lambda found: found[1] + TABLES[found["name"]](), text)


if __name__ == "__main__":
    for path, text in pages():
        path.write_text(text, encoding="utf-8")
