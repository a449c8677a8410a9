"""What keeps a machine awake although it has no task: a file, a person, another program, a script that says no.

Each veto is a sentence for people. What cannot be asked vetoes nothing, except for the script: it was configured for a
reason.
"""

import asyncio
import glob
import json
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final

from accsd import proc
from accsd.model import Node
from accsd.power.script import ShellScript
from accsd.settings import SleepSettings

_WITHIN: Final = timedelta(seconds=10)
_SCRIPT_WITHIN: Final = timedelta(seconds=30)
LOGIND: Final = ("org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager")


async def veto(rules: SleepSettings, node: str, *, ours: int | None = None) -> str | None:
    """The first reason to stay awake, or None. `ours` is the process that holds our own inhibitor."""
    if path := await asyncio.to_thread(_file, rules.veto_files):
        return f"{path} is there"
    if rules.veto_users and (who := await _user()):
        return f"{who} is logged in"
    if rules.veto_inhibitors and (sentence := await _inhibitor(ours)):
        return sentence
    return await _script(rules.veto_script, node)


def _file(patterns: Sequence[str]) -> str | None:
    return next((path for pattern in patterns for path in sorted(glob.glob(pattern))), None)


async def _user() -> str | None:
    """Who is logged in, by logind; where there is no logind, by utmp."""
    listed = await _output("loginctl", "list-sessions", "--no-legend")
    if listed is None:
        who = await _output("who")
        return _named(*who.split()[:2]) if who and len(who.split()) > 1 else None
    for session in [words[0] for line in listed.splitlines() if (words := line.split())]:
        has = await _session(session)
        # not the login screen, nor cron, nor one that has gone and left a process behind
        if has.get("Class", "").startswith("user") and has.get("State") != "closing":
            return _named(has.get("Name", "somebody"), has.get("TTY", ""))
    return None


async def _session(session: str) -> dict[str, str]:
    wanted = ("--property=Class", "--property=Name", "--property=State", "--property=TTY")
    shown = await _output("loginctl", "show-session", session, *wanted) or ""
    return {name: value for name, _, value in (line.partition("=") for line in shown.splitlines())}


def _named(name: str, terminal: str) -> str:
    return f"{name} ({terminal})" if terminal else name


async def _inhibitor(ours: int | None) -> str | None:
    """The program that blocks a sleep. Inhibitors that only delay one are left out."""
    listed = await _output("busctl", "--json=short", "call", *LOGIND, "ListInhibitors")
    for what, who, why, mode, _, pid in _inhibitors(listed or ""):
        if "sleep" in str(what).split(":") and str(mode).startswith("block") and pid != ours:
            return f"{who} inhibits sleep" + (f": {why}" if why else "")
    return None


def _inhibitors(text: str) -> list[tuple[object, object, object, object, object, object]]:
    try:
        return [tuple(row) for row in json.loads(text)["data"][0]]
    except (ValueError, LookupError, TypeError):
        return []


async def _script(path: Path | None, node: str) -> str | None:
    if path is None:
        return None
    result = await ShellScript(path, within=_SCRIPT_WITHIN).wake(Node(name=node))
    if result:
        return None
    said = (result.output or result.error or "").strip().partition("\n")[0][:300]
    return f"{path.name} says no: {said}"


async def _output(*argv: str) -> str | None:
    """What a program writes; None where it is not here, does not answer, or failed."""
    try:
        ended = await proc.call(argv, within=_WITHIN, env=proc.PLAIN_ENVIRON, keep=1024 * 1024)
    except OSError:  # TimeoutError is one
        return None
    return ended.stdout.decode(errors="replace") if ended.code == 0 else None
