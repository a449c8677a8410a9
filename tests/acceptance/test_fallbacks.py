"""What can be switched off in [fallback], one by one: the work is done all the same, and no other way is taken."""

import os
from pathlib import Path

import pytest

from accsd.agent.agent import Agent
from accsd.db import Fence, TaskEvent
from accsd.work.reporter import Reporter
from tests.support import daemon
from tests.support.attempts import shop
from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.compose_node import job_reaches, tasks_of
from tests.support.eventually import eventually
from tests.support.factory import NODE, SERVICE, chain, claim, node, started, step, submit
from tests.support.library import opened
from tests.support.tasks import NOTE, WAIT, notes, toml_service


async def test_without_notifications_nobody_listens_and_the_poll_finds_the_work(
    tmp_path: Path, db_url: str, conn: Connection
):
    config = "[fallback]\nnotify = false\n" + toml_service(SERVICE, NOTE)
    quick = {"ACC_POLL_DEAF_SEC": "0.2", "ACC_POLL_SEC": "100"}
    with daemon.running(tmp_path, db_url, config=config, environ=quick, http=True) as accsd:
        assert "fallback.notify" in accsd.wait_for("polling")["reason"]
        job = await submit(conn, *chain("a", "b"), options={"note": str(tmp_path / "notes")})
        await job_reaches(conn, job, "done", within=15)
        listeners = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE '%listener%'"
        assert await conn.fetchval(f"{listeners} AND datname = current_database()") == 0
        assert accsd.health()["listener"]["state"] == "polling"
        assert accsd.stop() == 0
    await check(conn)


async def test_without_batching_tasks_are_claimed_one_by_one_until_the_slots_are_full(
    tmp_path: Path, db_url: str, conn: Connection
):
    await node(conn)
    await submit(
        conn, *(step(key) for key in "abcd"), options={"note": str(tmp_path / "notes"), "go": str(tmp_path / "go")}
    )
    async with opened(db_url) as db, shop(db, tmp_path, fallback={"batching": False}) as here:
        here.context.services = {SERVICE: here.serving(WAIT, concurrency=3)}
        agent = Agent(here.context, SERVICE)
        await agent.run_once()  # settles
        passes = [await agent.run_once() for _ in range(4)]
        assert [done.did for done in passes] == ["claimed a", "claimed b", "claimed c", None]
        assert [done.more for done in passes] == [True, True, False, False]
        assert [task["task_key"] for task in await claim(conn)] == ["d"]
        (tmp_path / "go").touch()
        await here.idle()
    assert sorted(note[0] for note in notes(tmp_path / "notes") if note[2] == "ended") == ["a", "b", "c"]


@pytest.mark.parametrize(("batches", "transactions"), [(True, 1), (False, 3)])
async def test_without_batching_each_word_is_written_by_itself(
    db_url: str, conn: Connection, batches: bool, transactions: int
):
    await node(conn)
    await submit(conn, step("a"))
    (task,) = await started(conn, owner=NODE)
    async with opened(db_url) as db:
        reporter = Reporter(db, owner=NODE, batches=batches)
        for number in range(3):
            reporter.event(TaskEvent(Fence(task["task_id"], task["attempt_id"]), f"word {number}"))
        await reporter.flush()
    written = await conn.fetch("SELECT message, xmin::text FROM task_events WHERE type = 'log' ORDER BY id")
    assert [row["message"] for row in written] == ["word 0", "word 1", "word 2"]
    assert len({row["xmin"] for row in written}) == transactions


async def test_without_adoption_what_ran_before_a_restart_is_stopped_and_given_back(
    tmp_path: Path, db_url: str, conn: Connection
):
    config = "[fallback]\nadoption = false\n" + toml_service(SERVICE, WAIT)
    options = {"note": str(tmp_path / "notes"), "go": str(tmp_path / "go")}
    with daemon.running(tmp_path, db_url, config=config) as accsd:
        job = await submit(conn, step("a"), options=options)
        await eventually(lambda: notes(tmp_path / "notes"), within=15)
        accsd.kill()
    first = int(notes(tmp_path / "notes")[0][3])
    os.kill(first, 0)
    with daemon.running(tmp_path, db_url, config=config) as accsd:
        await eventually(lambda: len(notes(tmp_path / "notes")) == 2, within=15)
        with pytest.raises(ProcessLookupError):
            os.kill(first, 0)
        (tmp_path / "go").touch()
        await job_reaches(conn, job, "done")
        assert accsd.log("adopted") == []
        assert accsd.stop() == 0
    (task,) = (await tasks_of(conn, job)).values()
    assert (task["attempt_id"], task["attempt"], task["lost"]) == (2, 0, 1), "no attempt is spent"
    said = await conn.fetchval("SELECT message FROM task_events WHERE job_id = $1 AND message LIKE '%adoption%'", job)
    assert "takes up nothing" in said
    await check(conn)
