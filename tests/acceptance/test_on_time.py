"""What has a time is begun at that time, by sleeping to it and not by polling; several builders share the work."""

import re
from datetime import datetime, timedelta
from pathlib import Path

from tests.support import daemon
from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.daemon import Daemon
from tests.support.eventually import eventually
from tests.support.factory import chain, step, submit, workflow
from tests.support.fleet import all_are, claims, clock, is_done
from tests.support.tasks import command, counted_service

# Nobody polls while the test lasts.
NEVER = {"ACC_POLL_SEC": "3600", "ACC_POLL_DEAF_SEC": "3600"}
SOON = timedelta(seconds=0.5)


async def test_a_job_with_a_time_starts_at_that_time(tmp_path: Path, db_url: str, conn: Connection):
    config = counted_service("render", tmp_path / "notes", node="n1")
    with daemon.running(tmp_path, db_url, config=config, environ=NEVER) as accsd:
        accsd.wait_for("listening")
        due = await clock(conn) + timedelta(seconds=3)
        jobs = [await submit(conn, step("a"), scheduled_at=due + timedelta(seconds=later)) for later in (1, 0)]
        await all_are(conn, jobs, "done")
    first, second = [(await claims(conn, job))[0][0] for job in reversed(jobs)]
    assert due <= first < due + SOON
    assert due + timedelta(seconds=1) <= second < due + timedelta(seconds=1) + SOON
    await check(conn)


FAILS_ONCE = """
import os, sys
from pathlib import Path
been = Path({been!r})
if not been.exists():
    been.touch()
    sys.exit("not yet")
"""


def failing_once(folder: Path) -> str:
    program = FAILS_ONCE.format(been=str(folder / "been"))
    words = ", ".join(f"'''{word}'''" for word in command(program))
    return f'[services.render]\nrunner = "process"\ncommand = [{words}]\n'


async def retried(conn: Connection) -> datetime:
    """When the only retry was due."""
    [row] = await conn.fetch(
        "SELECT (data ->> 'next_attempt_at')::timestamptz AS due FROM task_events WHERE type = 'retry'"
    )
    return row["due"]


async def test_a_retry_is_slept_to_by_the_base_of_the_settings(tmp_path: Path, db_url: str, conn: Connection):
    environ = {**NEVER, "ACC_BACKOFF_BASE_SEC": "2"}
    with daemon.running(tmp_path, db_url, config=failing_once(tmp_path), environ=environ) as accsd:
        accsd.wait_for("listening")
        job = await submit(conn, step("a"))
        await is_done(conn, job)
    (first, _), (second, _) = await claims(conn, job)
    due = await retried(conn)
    assert timedelta(seconds=1) < due - first < timedelta(seconds=5)
    assert due <= second < due + SOON


async def test_a_retry_is_slept_to_by_the_steps_own_backoff(tmp_path: Path, db_url: str, conn: Connection):
    with daemon.running(tmp_path, db_url, config=failing_once(tmp_path), environ=NEVER) as accsd:
        accsd.wait_for("listening")
        job = await submit(conn, step("a", backoff={"strategy": "fixed", "base": 2}))
        await is_done(conn, job)
    (_, _), (second, _) = await claims(conn, job)
    due = await retried(conn)
    assert due <= second < due + SOON
    assert await conn.fetchval("SELECT attempt FROM job_tasks") == 1
    await check(conn)


def instantiated(builder: Daemon) -> int:
    """By its own count."""
    said = "".join(record["did"] for record in builder.log("pass") if record["role"] == "builder")
    return sum(map(int, re.findall(r"started (\d+) jobs", said)))


async def test_two_builders_instantiate_each_job_once(tmp_path: Path, db_url: str, conn: Connection):
    with (
        daemon.running(tmp_path, db_url, role="builder", node="b1", environ=NEVER) as one,
        daemon.running(tmp_path, db_url, role="builder", node="b2", environ=NEVER) as two,
    ):
        for builder in (one, two):
            builder.wait_for("listening")
        flow = await workflow(conn, *chain("a", "b", "c"))
        for _ in range(50):
            await conn.execute("INSERT INTO jobs (workflow_id) VALUES ($1)", flow)
        jobs = [row["id"] for row in await conn.fetch("SELECT id FROM jobs")]
        await all_are(conn, jobs, "running")
        await eventually(lambda: instantiated(one) + instantiated(two) >= 50)
        counts = instantiated(one), instantiated(two)
    assert sum(counts) == 50, counts
    assert min(counts) > 0, "both were at it"
    made = await conn.fetch("SELECT job_id, count(*), count(DISTINCT task_key) FROM job_tasks GROUP BY job_id")
    assert [tuple(row)[1:] for row in made] == [(3, 3)] * 50
    moves = "SELECT count(*) FROM task_events WHERE job_task_id IS NULL AND data ->> 'to' = 'running' GROUP BY job_id"
    assert [row["count"] for row in await conn.fetch(moves)] == [1] * 50
    await check(conn)
