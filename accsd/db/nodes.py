"""Nodes register, say goodbye, and say why they stay awake and which obstacle keeps them from a service."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from accsd.db.answers import Verdict
from accsd.db.pool import Database
from accsd.log import redact
from accsd.model import AwakeState, Node, WakeMethod
from accsd.values.json import sanitise


async def upsert_heartbeat(
    db: Database,
    name: str,
    *,
    labels: Mapping[str, Any] | None = None,
    max_concurrency: Mapping[str, int] | None = None,
    wake_method: WakeMethod | None = None,
    mac: str | None = None,
    provider_ref: str | None = None,
    script: str | None = None,
    networks: Sequence[str] | None = None,
    machine_id: str | None = None,
    boot_id: str | None = None,
    instance: str | None = None,
    lease: timedelta = timedelta(minutes=2),
    watts: Mapping[str, float] | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
) -> Node:
    """Registers a node, or says again that it is there and what it offers. None leaves a value as it is; empty
    watts and tools are forgotten. NameTaken where another machine is registered under the name and was seen within
    `lease`."""
    row = await db.fetchrow(
        "SELECT * FROM accs.register_node($1, $2, $3, $4, $5, $6, $7, $8::text[]::cidr[], $9, $10, $11, $12, $13, $14)",
        name,
        labels,
        max_concurrency,
        wake_method,
        mac,
        provider_ref,
        script,
        networks,
        machine_id,
        boot_id,
        instance,
        lease,
        watts,
        tools,
        repeatable=True,
    )
    assert row is not None, "register_node returns the node"
    return Node.model_validate(dict(row))


async def forget_node(
    db: Database, name: str, *, by: str | None = None, reason: str | None = None
) -> tuple[Verdict, str | None]:
    """Removes a machine that is no more. Refused, with the reason, while it is here or holds tasks."""
    row = await db.fetchrow(
        "SELECT answer, reason FROM accs.forget_node($1, p_by => $2, p_reason => $3)", name, by, reason
    )
    assert row is not None, "forget_node answers"
    return Verdict(row["answer"]), row["reason"]


async def node_leaves(
    db: Database,
    name: str,
    awake_state: AwakeState = AwakeState.UNKNOWN,
    *,
    because: str | None = None,
    counting_on: Sequence[str] = (),
) -> Verdict:
    """An orderly goodbye: UNKNOWN when the daemon stops, SLEEP when the machine goes to sleep. SLEEP is refused to a
    node that holds a lease, or that counts on a node that is not awake any more."""
    answer = await db.fetchval(
        "SELECT accs.node_leaves($1, $2, $3, $4)", name, awake_state, because, list(counting_on), repeatable=True
    )
    return Verdict(answer)


async def note_awake(db: Database, name: str, because: str) -> Verdict:
    """Writes why a node stays awake, as its agent sees it."""
    said = sanitise(because, scrub=redact)  # it may quote a script or the name of a file
    return Verdict(await db.fetchval("SELECT accs.note_awake($1, $2)", name, said, repeatable=True))


# The obstacle between a node and a service that it offers: `why`, `nodes` and `top` name it. The table has one text:
# the reason, and below it what to do about it, where that is known.

_LONGEST: Final = 500
_THEN: Final = "\n→ "


@dataclass(frozen=True, slots=True)
class Obstacle:
    reason: str
    hint: str | None = None

    @classmethod
    def read(cls, text: str) -> "Obstacle":
        reason, _, hint = text.partition(_THEN)
        return cls(reason, hint or None)


@dataclass(frozen=True, slots=True)
class Hindered:
    """A node that is awake, and the services that it claims nothing for, all for the same reason."""

    node: str
    services: list[str]
    obstacle: Obstacle


def together(obstacles: Iterable[tuple[str, str, str]]) -> list[Hindered]:
    """Groups (node, service, text): one engine that is away hinders all its services."""
    found: dict[tuple[str, str], list[str]] = {}
    for node, service, text in obstacles:
        found.setdefault((node, text), []).append(service)
    return [Hindered(node, services, Obstacle.read(text)) for (node, text), services in found.items()]


async def note_obstacle(db: Database, *, node: str, service: str, reason: str | None, hint: str | None = None) -> None:
    """Writes an obstacle; None: there is none. Its beginning is kept while the words change."""
    said = None if reason is None else _written(reason, hint)
    await db.fetchval("SELECT accs.note_obstacle($1, $2, $3)", node, service, said, repeatable=True)


def _written(reason: str, hint: str | None) -> str:
    """The text of the table. The hint is never cut: it is a command."""
    then = f"{_THEN}{sanitise(hint, scrub=redact)}" if hint else ""
    said = sanitise(reason, scrub=redact).replace(_THEN, " ")
    return said[: max(0, _LONGEST - len(then))] + then
