"""What Ordinaut's clients send and get. Fields that it does not know are ignored, as Ordinaut ignores them (G-6)."""

from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from accsd.gateway.access import GuardedRoute
from accsd.gateway.schemas import ANYTHING, Schema, objects
from accsd.model.access import Scope

DOOR: Final = "ordinaut"
Kind = Literal["cron", "rrule", "once", "interval", "event", "condition"]
Status = Literal["active", "paused", "canceled"]
Backoff = Literal["exponential_jitter", "linear", "fixed"]
Key = Annotated[str, Field(min_length=1, max_length=100)]
Title = Annotated[str, Field(min_length=1, max_length=200)]
Description = Annotated[str, Field(min_length=1, max_length=2000)]
Expression = Annotated[str, Field(min_length=1, max_length=20_000)]
Zone = Annotated[str, Field(min_length=1, max_length=100)]
Priority = Annotated[int, Field(ge=1, le=9, description="1 is the highest.")]
Retries = Annotated[int, Field(ge=0, le=10)]
Window = Annotated[int, Field(ge=0, le=366 * 86_400)]


class OrdinautRoute(GuardedRoute):
    """A token gets in here, and no session of a browser."""

    door = DOOR


class _Body(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class TaskIn(_Body):
    title: Title
    description: Description
    schedule_kind: Kind
    schedule_expr: Expression | None = Field(
        default=None, description="A cron line, an RRULE, a time, a topic, or the name of a condition."
    )
    timezone: Zone | None = Field(default=None, description="An IANA name; `gateway.ordinaut.timezone` without one.")
    payload: dict[str, Any] = Field(description="{params, pipeline: [{id, uses, with, save_as, if, …}]}")
    priority: Priority = 5
    dedupe_key: Key | None = None
    dedupe_window_seconds: Window = 0
    max_retries: Retries = 3
    backoff_strategy: Backoff = "exponential_jitter"
    concurrency_key: Key | None = None
    created_by: UUID | None = Field(default=None, description="The id of an agent; whoever asks, without one.")
    # beyond Ordinaut
    name: Key | None = Field(default=None, description="Of the schedule and its workflow; made of the title otherwise.")
    condition: dict[str, Any] | None = Field(
        default=None, description='When the condition is raised: {"above": 90}. Without it: when `true` is reported.'
    )


class TaskChange(_Body):
    """What is given changes, the rest stays."""

    title: Title | None = None
    description: Description | None = None
    schedule_kind: Kind | None = None
    schedule_expr: Expression | None = None
    timezone: Zone | None = None
    payload: dict[str, Any] | None = None
    priority: Priority | None = None
    status: Status | None = None
    dedupe_key: Key | None = None
    dedupe_window_seconds: Window | None = None
    max_retries: Retries | None = None
    backoff_strategy: Backoff | None = None
    concurrency_key: Key | None = None
    condition: dict[str, Any] | None = None


class SnoozeIn(_Body):
    delay_seconds: int = Field(ge=1, le=7 * 86_400)
    reason: str | None = Field(default=None, max_length=200)


class EventIn(_Body):
    topic: str = Field(min_length=1, max_length=100, examples=["alerta.critica"])
    payload: dict[str, Any]
    source_agent_id: UUID | None = Field(default=None, description="The id of an agent; whoever asks, without one.")


class AgentIn(_Body):
    name: Key
    scopes: list[Annotated[str, Field(min_length=1, max_length=200)]] = Field(
        min_length=1,
        max_length=100,
        description=f"{', '.join(Scope)}; narrowed by events:…, tools:…, services:…, workflows:…",
    )
    kind: Literal["person", "service", "assistant"] = "assistant"


class AgentChange(_Body):
    scopes: list[Annotated[str, Field(min_length=1, max_length=200)]] = Field(min_length=1, max_length=100)
    name: Key | None = None


class AgentCredentials(_Body):
    agent_id: UUID
    agent_secret: str = Field(max_length=200)


class Refresh(_Body):
    refresh_token: str = Field(max_length=200)


# Answers

_TEXT: Final[Schema] = {"type": "string"}
_MAYBE: Final[Schema] = {"type": ["string", "null"]}
_WHOLE: Final[Schema] = {"type": "integer"}
_ID: Final[Schema] = {"type": "string", "format": "uuid"}

TASK: Final = objects(
    id=_ID,
    title=_TEXT,
    description=_TEXT,
    created_by={"type": ["string", "null"], "format": "uuid"},
    schedule_kind=_TEXT,
    schedule_expr=_TEXT,
    timezone=_TEXT,
    payload=ANYTHING,
    status={"enum": ["active", "paused", "canceled"]},
    priority=_WHOLE,
    dedupe_key=_MAYBE,
    dedupe_window_seconds=_WHOLE,
    max_retries=_WHOLE,
    backoff_strategy={"enum": ["exponential_jitter", "linear", "fixed"]},
    concurrency_key=_MAYBE,
    created_at=_TEXT,
    updated_at=_TEXT,
    name=_TEXT,
    workflow=_TEXT,
    state={"enum": ["active", "snoozed", "held", "broken", "paused", "ended"]},
    state_reason=_MAYBE,
    next_run_at=_MAYBE,
    last_run_id=_MAYBE,
)
RUN: Final = objects(
    id=_ID,
    task_id=_ID,
    status=_TEXT,
    success={"type": ["boolean", "null"]},
    error=_MAYBE,
    attempt=_WHOLE,
    output={"type": ["object", "null"]},
    steps={"type": "array", "items": ANYTHING},
    trigger={"type": ["object", "null"]},
    lease_owner=_MAYBE,
    leased_until=_MAYBE,
    started_at=_MAYBE,
    finished_at=_MAYBE,
    created_at=_TEXT,
)
AGENT: Final = objects(
    id=_ID,
    name=_TEXT,
    kind=_TEXT,
    scopes={"type": "array", "items": _TEXT},
    webhook_url={"type": "null"},
    created_at=_TEXT,
)
TOKEN: Final = objects(
    access_token=_TEXT, refresh_token=_TEXT, token_type={"const": "bearer"}, expires_in=_WHOLE, scope=_TEXT
)
OPERATION: Final = objects(success={"type": "boolean"}, message=_TEXT, details=ANYTHING)


def listed(schema: Schema) -> Schema:
    return objects(
        items={"type": "array", "items": schema},
        total=_WHOLE,
        limit=_WHOLE,
        offset=_WHOLE,
        has_more={"type": "boolean"},
    )


def page(items: list[dict[str, Any]], total: int, limit: int, offset: int) -> dict[str, Any]:
    return {
        "items": items,
        "total": total,
        "limit": limit,
        "offset": offset,
        "has_more": offset + len(items) < total,
    }


def done(message: str, **details: Any) -> dict[str, Any]:
    """The answer of a deed that gives nothing back."""
    return {"success": True, "message": message, "details": details}


def moment(value: datetime | None) -> datetime | None:
    """A time of a query: UTC where it says no offset, as Ordinaut takes it."""
    return value if value is None or value.tzinfo is not None else value.replace(tzinfo=UTC)
