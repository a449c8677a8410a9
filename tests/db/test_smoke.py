"""A22: two jobs of two tasks each, from plain SQL alone."""

import pytest

from tests.support.cluster import Connection

pytestmark = pytest.mark.every_postgresql


async def test_two_jobs_of_two_tasks_run_in_the_global_order_from_plain_sql(conn: Connection):
    await conn.execute("""
        INSERT INTO nodes (name) VALUES ('studio');
        INSERT INTO workflows (name, steps) VALUES ('clip', '[
            {"key": "sound", "service": "audio"},
            {"key": "picture", "service": "renderer", "depends_on": ["sound"], "default_params": {"fps": 25}}]');
        INSERT INTO jobs (workflow_id) SELECT id FROM workflows;
        INSERT INTO jobs (workflow_id) SELECT id FROM workflows;
    """)
    await conn.execute("SELECT accs.instantiate_due_jobs()")
    order: list[tuple[int, str]] = []
    for service in ("audio", "renderer", "audio", "renderer"):
        row = await conn.fetchrow(
            "SELECT j.order_seq, c.* FROM accs.claim_tasks($1, 'me', 'studio', 1, '1 min') c"
            " JOIN jobs j ON j.id = c.job_id",
            service,
        )
        assert row is not None
        order.append((row["order_seq"], row["task_key"]))
        fence = (row["task_id"], row["attempt_id"])
        for verb in ("start_tasks", "finish_tasks"):
            answer = await conn.fetchval(
                f"SELECT answer FROM accs.{verb}(ARRAY[$1::uuid], ARRAY[$2::int], 'me')", *fence
            )
            assert answer == "accepted"

    assert order == [(1, "sound"), (1, "picture"), (2, "sound"), (2, "picture")]
    assert await conn.fetch("SELECT status, progress FROM jobs") == [("done", 1), ("done", 1)]
