"""One call of a tool: who may, with which arguments, and for a write its two steps (MC3). It knows nothing of MCP; the
server turns what it says into messages."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import orjson
from pydantic import ValidationError

from accsd.db import Database
from accsd.db.rehearsal import as_rehearsed, rehearsed
from accsd.db.views.jobs import clock
from accsd.errors import AccsdError
from accsd.explain.redaction import Redaction
from accsd.gateway.answers import encode
from accsd.gateway.mcp.confirmation import Confirmation, begin, changed, digest
from accsd.gateway.mcp.desk import Desk
from accsd.gateway.mcp.jobs import JOB_TOOLS
from accsd.gateway.mcp.readings import READINGS
from accsd.gateway.mcp.schedules import SCHEDULE_TOOLS
from accsd.gateway.mcp.tool import Deed, Effect, Tool, ToolAnswer, ToolKind, WriteArguments
from accsd.gateway.mcp.untrusted import NOTICE, untrusted, visible
from accsd.gateway.problems import KINDS, HttpProblem, described
from accsd.log import get_logger
from accsd.values.json import MAX_DEPTH, is_too_deep, sanitise

_log = get_logger(component="mcp")
_MOST_ARGUMENTS: Final = 512 * 1024  # bytes
_MOST_ANSWER: Final = 256 * 1024
_LONGEST_SENTENCE: Final = 1000
TOOLS: Final[Mapping[str, Tool[Any]]] = {tool.name: tool for tool in (*READINGS, *SCHEDULE_TOOLS, *JOB_TOOLS)}


@dataclass(frozen=True, slots=True)
class Said:
    """What is told: one sentence, and all of it as JSON."""

    sentence: str
    document: Mapping[str, Any]
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class Preview:
    """What a write would do. `confirm` lets it happen."""

    effect: Effect
    cost: Mapping[str, Any]
    confirm: str
    expires_at: datetime

    def question(self) -> str:
        """For a person, in our own words."""
        lines = [self.effect.would, self.effect.data.get("words")]
        if "runs_per_day" in self.cost:
            lines.append(f"Runs a day: {self.cost['runs_per_day']:g}.")
        if self.cost.get("machines_to_wake"):
            lines.append(f"Machines that have to wake: {self.cost['machines_to_wake']}.")
        return "\n".join(visible(line) for line in lines if line)

    def said(self) -> Said:
        ends = self.expires_at.isoformat(timespec="seconds")
        return _said(
            f"{self.effect.would} Nothing was done yet: call again with the same arguments and confirm, before {ends}.",
            {
                "status": "preview",
                "effect": self.effect.data,
                **({"cost": self.cost} if self.cost else {}),
                "confirm": self.confirm,
                "expires_at": self.expires_at,
            },
        )


def tools_of(desk: Desk) -> list[Tool[Any]]:
    """Those that the caller's scopes allow (MC4)."""
    return [tool for tool in TOOLS.values() if desk.caller.may(tool.scope)]


async def call(
    desk: Desk, name: str, arguments: Mapping[str, Any] | None, *, confirm: str | None = None
) -> Said | Preview:
    """Reads, previews or writes. `confirm` is what a person has answered to a preview; else it is in the arguments."""
    tool = TOOLS.get(name)
    if tool is None:
        raise HttpProblem("unknown_tool", f"there is no tool {visible(name[:100])}", hint="tools/list has them")
    desk.require(tool.scope, f"the tool {name}")
    given = _given(tool, dict(arguments or {}))
    if tool.kind is ToolKind.READ:
        assert tool.read is not None
        return _told(await tool.read(desk, given))
    assert isinstance(given, WriteArguments)
    asked = given.model_dump(mode="json", exclude={"confirm"})  # however it was written: a default may be left out
    return await _written(desk, tool, given, asked, confirm or given.confirm)


def _given(tool: Tool[Any], arguments: dict[str, Any]) -> Any:
    if is_too_deep(arguments) or sanitise(arguments, max_bytes=8 * _MOST_ARGUMENTS) != arguments:
        raise HttpProblem(
            "invalid",
            "the arguments hold what can't be kept as JSON: NaN, \\u0000, half a character, an integer of more than 64"
            f" bits, or more than {MAX_DEPTH} levels",
        )
    if len(encode(arguments)) > _MOST_ARGUMENTS:
        raise HttpProblem("too_large", f"the arguments of a call have at most {_MOST_ARGUMENTS // 1024} KiB")
    try:
        return tool.takes.model_validate(arguments)
    except ValidationError as error:
        found = error.errors(include_input=False, include_url=False)
        places = [".".join(map(str, each["loc"])) or "arguments" for each in found[:5]]
        detail = "; ".join(f"{place}: {each['msg']}" for place, each in zip(places, found[:5], strict=True))
        raise HttpProblem("invalid", detail, hint=f"tools/list has the schema of {tool.name}") from None


async def _written(
    desk: Desk, tool: Tool[Any], given: Any, arguments: Mapping[str, Any], confirm: str | None
) -> Said | Preview:
    assert tool.prepare is not None
    now = await clock(desk.reads)
    confirmations = await desk.confirmations()
    if confirm is not None:
        known = confirmations.open(confirm, desk.caller, tool.name, arguments, now=now)
        change: Deed = await tool.prepare(desk, given, _key(desk, known.number))
        return await _carried_out(desk, change, known.holds)
    number, expires_at = begin(now, desk.limits.preview)
    change = await tool.prepare(desk, given, _key(desk, number))
    if _is_waived(desk, tool, change):
        return await _carried_out(desk, change, None)
    effect, cost = await _previewed(desk, change)
    made = Confirmation(number, digest(effect.holds), expires_at)
    sealed = confirmations.seal(made, desk.caller, tool.name, arguments)
    return Preview(effect, cost, sealed, expires_at)


def _key(desk: Desk, number: str) -> str:
    """Under which a write is known, so that the same confirmation twice is one write."""
    return f"http/{desk.caller.actor}/mcp/{number}"


def _is_waived(desk: Desk, tool: Tool[Any], change: Deed) -> bool:
    """Writes that can be repeated and touch the caller's own, by a token for which a person has said so."""
    is_mild = tool.kind is ToolKind.WRITE and tool.is_idempotent and change.is_own
    return is_mild and desk.caller.token_id in desk.limits.unconfirmed


async def _previewed(desk: Desk, change: Deed) -> tuple[Effect, Mapping[str, Any]]:
    async def work(db: Database) -> tuple[Effect, Mapping[str, Any]]:
        effect = await change.work(db)
        return effect, {} if change.cost is None else await change.cost(db)

    return await rehearsed(desk.verbs, work)


async def _carried_out(desk: Desk, change: Deed, holds: str | None) -> Said:
    """`holds`: what the preview found; None: there was none."""
    effect, is_done = await as_rehearsed(
        desk.verbs, change.work, lambda effect: holds is None or digest(effect.holds) == holds
    )
    if not is_done:
        raise changed()
    return _said(effect.did, {"status": "done", "effect": {**effect.made, **effect.data}})


def cancelled() -> Said:
    """A person was asked, and did not agree."""
    return _said("Nothing was done: the person who was asked did not agree.", {"status": "cancelled"})


# What is told


def _told(told: ToolAnswer) -> Said:
    return _said(told.said, told.data)


def _said(sentence: str, data: Mapping[str, Any]) -> Said:
    said = _sentence(sentence)
    document = orjson.loads(encode({"said": said, "notice": NOTICE, **data}))
    return Said(said, _bounded(document))


def _sentence(text: str) -> str:
    return " ".join(visible(text).split())[:_LONGEST_SENTENCE]


def _bounded(document: dict[str, Any]) -> dict[str, Any]:
    """Rows that do not fit any more are left out, and that is said."""
    items: list[Any] = document.get("items") or []
    while items and len(encode(document)) > _MOST_ANSWER:
        del items[len(items) // 2 :]
        document["more"] = True
    return document


def refusal(error: Exception) -> Said:
    """What went wrong. Problems of ours are in our words; the words of any other error may repeat what others wrote."""
    code, members, _ = described(error)
    title = KINDS[code].title if code in KINDS else "It was refused"
    if code == "bug":
        _log.error("call_failed", exc_info=error)
    detail = error.message if isinstance(error, AccsdError) and code != "bug" else "the log of accsd has what happened"
    hint = error.hint if isinstance(error, AccsdError) else None
    if isinstance(error, HttpProblem):
        words: dict[str, Any] = {"detail": visible(detail), **({"hint": hint} if hint else {})}
        sentence = f"{title}: {detail}." + (f" {hint}." if hint else "")
    else:
        words = untrusted(Redaction(()), detail=detail, hint=hint, errors=members.get("errors"))
        sentence = f"{title} ({code})."
    extra = {name: members[name] for name in ("scope",) if name in members}
    return Said(_sentence(sentence), {"notice": NOTICE, "error": {"code": code, **words, **extra}}, is_error=True)
