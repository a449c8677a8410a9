"""Every rule of the history checker sees what it is there for: rows are made wrong behind the guard's back."""

from datetime import timedelta
from uuid import uuid4

import pytest

from tests.support.checker import check, violations
from tests.support.cluster import Connection
from tests.support.factory import chain, claim, clock, done, fail, node, pass_time, started, step, submit

pytestmark = pytest.mark.every_postgresql

# What each change leaves wrong. The rows are those of `some_history`; events are named by their job and move.
EVENT = "INSERT INTO task_events (job_id, job_task_id, source, attempt_id, type, data) SELECT job_id, id, 'x'"
FIRST = "FROM job_tasks WHERE task_key = 'first'"
WRONG = [
    (
        "an attempt has one owner",
        f"""{EVENT}, 1, 'status', '{{"from": "queued", "to": "starting", "owner": "b"}}' {FIRST}""",
    ),
    (
        "every claim has a new attempt_id",
        f"""{EVENT}, 7, 'status', '{{"from": "queued", "to": "starting"}}' {FIRST}""",
    ),
    (
        "a generation is done once",
        f"""{EVENT}, 1, 'status', '{{"from": "running", "to": "done"}}' {FIRST}""",
    ),
    (
        "events chain",
        "DELETE FROM task_events WHERE data ->> 'to' = 'running' AND job_task_id IS NOT NULL",
    ),
    (
        "every move is legal",
        f"""{EVENT}, NULL, 'retry', '{{"from": "done", "to": "running"}}' {FIRST}""",
    ),
    (
        "terminal is final but for a retry",
        f"""{EVENT}, NULL, 'status', '{{"from": "done", "to": "queued"}}' {FIRST}""",
    ),
    (
        "no attempt ends after a newer claim",
        "UPDATE task_events SET attempt_id = 0 WHERE data ->> 'to' = 'done' AND job_task_id IS NOT NULL",
    ),
    (
        "events end at the state of the task",
        "DELETE FROM task_events WHERE data ->> 'to' = 'done'",
    ),
    (
        "events end at the state of the job",
        "DELETE FROM task_events WHERE job_task_id IS NULL",
    ),
    (
        "dependencies are satisfied before the claim",
        "UPDATE task_events SET id = id + 1000 WHERE data ->> 'to' = 'done'",
    ),
    (
        "a refusal has a reason of D5",
        f"{EVENT}, NULL, 'refused', '{{}}' {FIRST}",
    ),
    (
        "waiting ⇔ queued and nothing remaining",
        "DELETE FROM accs.waiting WHERE hold IS NULL",
    ),
    (
        "waiting ⇔ queued and nothing remaining",
        f"INSERT INTO accs.waiting (task_id, lane, rank, order_seq, created_at) SELECT id, lane, 0, 0, now() {FIRST}",
    ),
    (
        "a waiting row repeats its task",
        "UPDATE accs.waiting SET rank = rank + 1",
    ),
    (
        "a hold has its reason",
        "UPDATE accs.waiting SET hold = 'paused' WHERE hold IS NULL",
    ),
    (
        "a hold has its reason",
        "UPDATE accs.waiting SET hold = 'backoff', due_at = now() WHERE hold IS NULL",
    ),
    (
        "a hold has its reason",
        "UPDATE accs.waiting SET hold = 'key' WHERE hold IS NULL AND key IS NULL",
    ),
    (
        "a key with room lets its first tasks stand",
        "UPDATE accs.concurrency_keys SET max_running = 2",
    ),
    (
        "a key keeps its limit",
        "UPDATE accs.live SET key = 'disk'",
    ),
    (
        "live ⇔ starting or running",
        "DELETE FROM accs.live",
    ),
    (
        "a live row repeats its task",
        "UPDATE accs.live SET lease_until = lease_until + interval '1 s'",
    ),
    (
        "pending ⇔ a queued job",
        "DELETE FROM accs.pending_jobs",
    ),
    (
        "pending ⇔ a queued job",
        "UPDATE accs.pending_jobs SET due_at = now()",
    ),
    (
        "remaining dependencies",
        "UPDATE job_tasks SET remaining = 2 WHERE task_key = 'third'",
    ),
    (
        "the counts of a job",
        "UPDATE jobs SET open_tasks = open_tasks - 1 WHERE open_tasks > 0",
    ),
    (
        "the counts of a job",
        "UPDATE jobs SET task_progress = task_progress + 0.5 WHERE task_count > 0",
    ),
    (
        "a job is closed ⇔ its tasks are",
        "UPDATE jobs SET status = 'running' WHERE status = 'error'",
    ),
    (
        "a job is closed ⇔ its tasks are",
        "UPDATE jobs SET status = 'done' WHERE open_tasks > 0",
    ),
    (
        "a job is in error ⇔ a task is, or was cancelled before",
        "UPDATE jobs SET error_code = 'another' WHERE status = 'error'",
    ),
    (
        "attempts and losses are bounded",
        "UPDATE job_tasks SET lost = 6 WHERE task_key = 'first'",
    ),
    (
        "attempts and losses are bounded",
        "UPDATE job_tasks SET attempt = max_attempts WHERE status = 'running'",
    ),
    (
        "error ⇔ a dead letter",
        "DELETE FROM dead_letters",
    ),
    (
        "error ⇔ a dead letter",
        "UPDATE job_tasks SET status = 'done' WHERE status = 'error'",
    ),
    (
        "an output belongs to the attempt that finished",
        f"""INSERT INTO task_artifacts (job_id, job_task_id, kind, bucket, key, attempt_id)
            SELECT job_id, id, 'output', 'b', 'k', 0 {FIRST}""",
    ),
]


@pytest.fixture
async def some_history(conn: Connection) -> Connection:
    """A chain whose second step runs, a key that is taken and waited for, a failure, and a job for later."""
    await node(conn)
    await submit(conn, *chain("first", "second", "third"))
    await done(conn)
    await started(conn)
    for name in ("holder", "held"):
        await submit(conn, step(name, "disk", concurrency_key="disk"))
    await claim(conn, service="disk")
    await submit(conn, step("bad", "other"))
    await fail(conn, *await started(conn, service="other"), permanent=True)
    await submit(conn, step("waits", "other"))
    await submit(conn, step("later"), scheduled_at=(await clock(conn)).replace(year=2100))
    await check(conn)
    await conn.execute("SET session_replication_role = replica")
    return conn


async def test_each_rule_of_the_checker_sees_what_is_wrong(some_history: Connection) -> None:
    unseen: list[str] = []
    for rule, change in WRONG:
        change_alone = some_history.transaction()
        await change_alone.start()
        assert await some_history.execute(change) not in ("UPDATE 0", "DELETE 0", "INSERT 0 0"), change
        if rule not in {violation.rule for violation in await violations(some_history)}:
            unseen.append(f"{rule}: {change}")
        await change_alone.rollback()
    assert unseen == []
    await check(some_history)


async def test_the_checker_sees_a_lease_that_nobody_takes_back(some_history: Connection) -> None:
    lease_and_more = 90
    await pass_time(some_history, seconds=lease_and_more)
    await check(some_history)
    await check(some_history, timedelta(seconds=60))
    with pytest.raises(AssertionError, match="nothing runs long past its lease"):
        await check(some_history, timedelta(seconds=10))


async def test_the_checker_sees_an_acknowledged_job_that_is_not_there(some_history: Connection) -> None:
    jobs = [row["id"] for row in await some_history.fetch("SELECT id FROM jobs")]
    await check(some_history, acknowledged=jobs)
    with pytest.raises(AssertionError, match="what was acknowledged exists"):
        await check(some_history, acknowledged=[*jobs, uuid4()])


async def test_a_key_whose_limit_was_lowered_may_be_over_it_until_its_tasks_end(some_history: Connection) -> None:
    await some_history.execute("UPDATE accs.live SET key = 'disk'")
    await some_history.execute("UPDATE job_tasks SET concurrency_key = 'disk' WHERE status = 'running'")
    with pytest.raises(AssertionError, match="a key keeps its limit"):
        await check(some_history)
    await check(some_history, lowered=["disk"])
