"""What a tool is: its name, what it takes, which scope it needs, and what it does. It knows nothing of MCP."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, Generic, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field

from accsd.db import Database
from accsd.gateway.mcp.confirmation import LONGEST
from accsd.gateway.mcp.desk import Desk
from accsd.gateway.mcp.untrusted import NOTICE
from accsd.model.access import Scope


class Arguments(BaseModel):
    """What a tool takes. What it does not know is a mistake: an assistant finds it at once, and not in its results."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class WriteArguments(Arguments):
    reason: str | None = Field(default=None, max_length=1000, description="Why, for the history.")
    confirm: str | None = Field(
        default=None,
        max_length=LONGEST,
        description="Leave it out for a preview, which writes nothing. The preview's confirm, with the same arguments,"
        " does what was previewed.",
    )


Given = TypeVar("Given", bound=Arguments)


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """An answer. `said` is one sentence: accsd's own words, ids, and what the caller itself gave. `data` has all of it;
    what others wrote is below `untrusted` in it."""

    said: str
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Effect:
    """What a write has done, or would do: the same, since a preview carries it out and undoes it. `holds` is what must
    not differ between a preview and its confirmation; `made` are ids that nothing has before it is done."""

    would: str
    did: str
    data: Mapping[str, Any]
    holds: Any
    made: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Deed:
    """A write whose arguments were found good. `cost` is asked in a preview only, after the work and in the same
    transaction. `is_own`: all that it touches belongs to the caller."""

    work: Callable[[Database], Awaitable[Effect]]
    cost: Callable[[Database], Awaitable[Mapping[str, Any]]] | None = None
    is_own: bool = False


class ToolKind(StrEnum):
    READ = "read"
    WRITE = "write"
    DESTRUCTIVE = "destructive"


@dataclass(frozen=True)
class Tool(Generic[Given]):
    name: str
    title: str
    about: str
    scope: Scope
    kind: ToolKind
    takes: type[Given]
    gives: Mapping[str, Any]  # properties of the schema of its data
    read: Callable[[Desk, Given], Awaitable[ToolAnswer]] | None = None
    prepare: Callable[[Desk, Given, str], Awaitable[Deed]] | None = None  # the text is the key of this write
    is_idempotent: bool = False

    @cached_property
    def input_schema(self) -> dict[str, Any]:
        return _slim(self.takes.model_json_schema())

    @cached_property
    def output_schema(self) -> dict[str, Any]:
        if self.kind is ToolKind.READ:
            properties = {"said": _TEXT, "notice": _NOTICE, **self.gives}
            return _object(properties, required=["said", "notice", *self.gives])
        return _object(
            {
                "said": _TEXT,
                "notice": _NOTICE,
                "status": {"enum": ["preview", "done", "cancelled"]},
                "effect": _object(dict(self.gives)),
                "cost": {"type": "object"},
                "confirm": _TEXT,
                "expires_at": _TEXT,
            },
            required=["said", "notice", "status"],
        )


_TEXT: Mapping[str, Any] = {"type": "string"}
_NOTICE: Mapping[str, Any] = {"const": NOTICE}


def _object(properties: Mapping[str, Any], required: list[str] | None = None) -> dict[str, Any]:
    return {"type": "object", "properties": dict(properties)} | ({"required": required} if required else {})


def _slim(schema: Any) -> Any:
    """Without the titles that Pydantic makes of names: they say nothing, and each of them is read by a model."""
    if isinstance(schema, list):
        return [_slim(each) for each in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    found = cast("dict[str, Any]", schema)
    kept = {key: value for key, value in found.items() if key != "title" or not isinstance(value, str)}
    return {
        key: {name: _slim(each) for name, each in value.items()} if key in ("properties", "$defs") else _slim(value)
        for key, value in kept.items()
    }


# Schemas of what tools give

ROWS: Mapping[str, Any] = {"type": "array", "items": {"type": "object"}}
ROW: Mapping[str, Any] = {"type": "object"}
MORE: Mapping[str, Any] = {"type": "boolean", "description": "There are more; narrow the question."}
