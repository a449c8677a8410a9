"""Steps with expressions without a resolver: the test says what one would have found."""

from typing import Any
from uuid import UUID

from accsd.db import Verdict
from tests.support.cluster import Connection
from tests.support.factory import Row, done, node, step, submit, task

ACCEPTED = Verdict.ACCEPTED.value


async def to_resolve(conn: Connection) -> list[str]:
    return [row["task_key"] for row in await conn.fetch("SELECT * FROM accs.tasks_to_resolve()")]


async def verdict_on(conn: Connection, job_id: UUID, key: str, verdict: str, **said: Any) -> dict[str, Any]:
    row = await task(conn, job_id, key)
    return {"task_id": str(row["id"]), "generation": row["generation"], "verdict": verdict, **said}


async def resolve(conn: Connection, job_id: UUID, key: str, verdict: str = "run", **said: Any) -> Row:
    (row,) = await conn.fetch(
        "SELECT * FROM accs.resolve_tasks($1)", [await verdict_on(conn, job_id, key, verdict, **said)]
    )
    return row


async def fan_out(conn: Connection, job_id: UUID, key: str, *given: Any, **options: Any) -> Row:
    row = await task(conn, job_id, key)
    (answer,) = await conn.fetch(
        "SELECT * FROM accs.fan_out($1, $2, $3, $4, $5, $6, $7, $8)",
        row["id"],
        row["generation"],
        [None if one is None else {"with": {"item": one}} for one in given],
        options.get("parallel"),
        options.get("tolerate", 0),
        options.get("delays"),
        options.get("cache_for"),
        options.get("salt"),
    )
    return answer


async def retry(conn: Connection, job_id: UUID, step: str | None = None) -> Row:
    (row,) = await conn.fetch("SELECT * FROM accs.retry_jobs($1, $2)", [job_id], [step])
    return row


def fan(*, after_join: bool = False, **fields: Any) -> list[dict[str, Any]]:
    """split → each × n → join"""
    steps = [step("split"), step("each", after="split", for_each="${steps.split.parts}", **fields)]
    return [*steps, step("join", after="each"), *([step("last", after="join")] if after_join else [])]


async def fanned(conn: Connection, *items: Any, fields: dict[str, Any] | None = None, **options: Any) -> UUID:
    await node(conn)
    made = await submit(conn, *fan(**(fields or {})))
    await done(conn)
    assert (await fan_out(conn, made, "each", *items, **options))["answer"] == ACCEPTED
    return made
