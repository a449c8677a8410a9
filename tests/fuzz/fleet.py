"""A fleet in which every text that anybody may write is hostile, and some moments are far away: for what shows them."""

import asyncpg

from tests.support.cluster import Connection
from tests.support.factory import NODE, OWNER, claim, fail, finish, node, started, step, workflow

# A title, a cleared screen, a C1 control, a return, a backspace, a change of the direction of writing.
STORED = "\x1b]0;stored\x07\x1b[2J\x9b1mx\r\x08\u202e"
DOCUMENT = {STORED: STORED}
_FAR = ("now", "tomorrow", "infinity", "-infinity", "12000-01-01", "294276-12-31", "4713-01-01 BC")
_JOB = """
INSERT INTO jobs (workflow_id, options, created_by, trace_id, idempotency_key, scheduled_at)
SELECT id, $1, $2, $2, $2 || gen_random_uuid(), $3::text::timestamptz FROM workflows WHERE name = $4
"""


async def populate(conn: Connection) -> dict[str, list[str]]:
    """Answers what there is to be named, by what it is."""
    await _make_machines(conn)
    await _make_jobs(conn)
    await _do_some_work(conn)
    for kind, name in (("node", STORED), ("workflow", STORED), ("service", "render")):
        await conn.execute("SELECT accs.pause($1, $2, $3, $3)", kind, name, STORED)
    jobs = [str(row[0]) for row in await conn.fetch("SELECT id FROM jobs ORDER BY order_seq LIMIT 20")]
    return {
        "jobs": [*jobs, *jobs, *(job[-8:] for job in jobs), "nobody"],
        "nodes": [NODE, STORED, "nobody"],
        "workflows": ["plain", STORED, "nobody"],
        "submit": ["plain", "plain", STORED],
        "services": ["render", "nobody"],
        "outbox": [STORED, "nobody"],
        "words": ["plain", STORED, NODE, "render", "a", "b", "a=1", "1h", "10s", "2024-01-01", "tomorrow", "{}"],
    }


async def _make_machines(conn: Connection) -> None:
    await node(conn, NODE, {"gpu": True}, render=50)
    register = "SELECT FROM accs.register_node($1, $2, '{\"render\": 1}', 'wol', '00:11:22:33:44:55', $1)"
    await conn.execute(register, STORED, DOCUMENT)
    await conn.execute("SELECT accs.quarantine($1, 'other', $2, $3, '1 hour')", NODE, STORED, DOCUMENT)
    await conn.execute("SELECT accs.register_outbox_target($1, $1, '{job.done,job.error,job.submitted}')", STORED)


async def _make_jobs(conn: Connection) -> None:
    await workflow(conn, step("a", max_attempts=1), step("b", after="a"), name="plain")
    picky = step("a", node=STORED, requires={"x": STORED}, concurrency_key=STORED, default_params=DOCUMENT)
    await conn.execute("INSERT INTO workflows (name, steps, created_by) VALUES ($1, $2, $1)", STORED, [picky])
    for moment in _FAR:
        for name in ("plain", STORED):
            try:
                await conn.execute(_JOB, DOCUMENT, STORED, moment, name)
            except asyncpg.CheckViolationError:
                continue  # what is refused is not there to be shown
    await conn.execute("SELECT accs.submit('plain', p_options => $1) FROM generate_series(1, 5)", DOCUMENT)
    await conn.execute("SELECT FROM accs.instantiate_due_jobs()")


async def _do_some_work(conn: Connection) -> None:
    await fail(conn, *await started(conn, 2), code="bad", message=STORED, permanent=True)
    ended = await started(conn, 2)
    await finish(conn, *ended, results=[DOCUMENT] * len(ended))
    (live,) = await claim(conn, 1)
    fence = live["task_id"], live["attempt_id"]
    said = "SELECT FROM accs.append_task_events($1, $2, $3, '{info}', '{log}', $4, $5)"
    await conn.execute(said, OWNER, [fence[0]], [fence[1]], [STORED], [DOCUMENT])
    kept = "SELECT FROM accs.record_artifact($1, $2, $3, 'output', $4, $4, 7, $4, $4)"
    await conn.execute(kept, *fence, OWNER, STORED)
