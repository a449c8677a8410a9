"""Nodes register and are paused or drained; services and workflows are paused."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from enum import StrEnum
from typing import Any

from accsd.db.answers import Verdict
from accsd.db.pool import Database
from accsd.log import redact
from accsd.model import AwakeState, Node, WakeMethod
from accsd.values.json import sanitise


class Pausable(StrEnum):
    SERVICE = "service"
    WORKFLOW = "workflow"  # by name, all versions
    NODE = "node"  # a drain: what runs goes on, nothing new is claimed


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
) -> Node:
    """Registers a node, or says anew that it is there and what it offers. None leaves a value as it is. NameTaken
    where another machine is registered under the name and was seen within `lease`."""
    row = await db.fetchrow(
        "SELECT * FROM accs.register_node($1, $2, $3, $4, $5, $6, $7, $8::text[]::cidr[], $9, $10, $11, $12)",
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
        repeatable=True,
    )
    assert row is not None, "register_node returns the node"
    return Node.model_validate(dict(row))


async def forget_node(db: Database, name: str) -> tuple[Verdict, str | None]:
    """A machine that is no more. Refused, with the reason, while it is here or holds tasks."""
    row = await db.fetchrow("SELECT answer, reason FROM accs.forget_node($1)", name)
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
    """An orderly goodbye: UNKNOWN when the daemon stops, SLEEP when the machine goes to sleep. The latter is refused to
    whoever holds a lease, or counts on somebody who is not awake any more."""
    answer = await db.fetchval(
        "SELECT accs.node_leaves($1, $2, $3, $4)", name, awake_state, because, list(counting_on), repeatable=True
    )
    return Verdict(answer)


async def note_awake(db: Database, name: str, because: str) -> Verdict:
    """Why a node stays awake, as its agent sees it."""
    said = sanitise(because, scrub=redact)  # a script's own words, or the name of a file
    return Verdict(await db.fetchval("SELECT accs.note_awake($1, $2)", name, said, repeatable=True))


async def pause(
    db: Database, what: Pausable, name: str, *, reason: str | None = None, by: str | None = None
) -> Verdict:
    """No new claims. What runs goes on."""
    return Verdict(await db.fetchval("SELECT accs.pause($1, $2, $3, $4)", what, name, reason, by, repeatable=True))


async def resume(db: Database, what: Pausable, name: str) -> Verdict:
    return Verdict(await db.fetchval("SELECT accs.resume($1, $2)", what, name, repeatable=True))


async def set_concurrency_limit(db: Database, key: str, limit: int) -> Verdict:
    """How many tasks with this concurrency key may run at once."""
    return Verdict(await db.fetchval("SELECT accs.set_concurrency_limit($1, $2)", key, limit, repeatable=True))
