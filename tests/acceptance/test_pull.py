"""Services in pull mode as people run them: real processes, killed, stopped, cut off."""

import asyncio
import re
import signal
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

from tests.support import daemon
from tests.support.cable import Cable
from tests.support.checker import check
from tests.support.cluster import Connection, TestServer
from tests.support.daemon import PULL_NOTE, PULL_WAIT, pulling
from tests.support.eventually import eventually
from tests.support.factory import cancel, chain, dead_letters, step, submit, submit_to, task, workflow
from tests.support.fleet import reaches
from tests.support.library import tcp_url
from tests.support.tasks import notes

ROOT = Path(__file__).parents[2]
SHORT_LEASE = {"ACC_HEARTBEAT_TTL_SEC": "4"}


async def began(path: Path, count: int = 1) -> list[list[str]]:
    def those() -> list[list[str]]:
        return [note for note in notes(path) if note[2] == "began"]

    await eventually(lambda: len(those()) >= count, within=30)
    return those()


async def test_steps_run_in_their_order_and_the_node_says_goodbye(tmp_path: Path, db_url: str, conn: Connection):
    note = tmp_path / "notes"
    with pulling(tmp_path, db_url) as service:
        job = await submit(conn, *chain("a", "b", "c"), options={"note": str(note)})
        await reaches(conn, job, "done")
        assert service.stop() == 0
    assert notes(note) == [["a", "1", "ran"], ["b", "1", "ran"], ["c", "1", "ran"]]
    assert (await task(conn, job, "b"))["results"] == {"key": "b", "upstream": {"a": {"key": "a", "upstream": {}}}}
    assert await conn.fetchval("SELECT awake_state FROM nodes WHERE name = 'm1.render'") == "unknown"
    await check(conn)


async def test_a_worker_that_is_killed_is_replaced_and_each_task_has_one_result(
    tmp_path: Path, db_url: str, conn: Connection
):
    note, go = tmp_path / "notes", tmp_path / "go"
    options = {"note": str(note), "go": str(go)}
    with pulling(tmp_path, db_url, PULL_WAIT, environ=SHORT_LEASE) as first:
        job = await submit(conn, step("a"), step("b", after="a"), options=options)
        await began(note)
        first.kill()
    go.touch()
    with pulling(tmp_path, db_url, PULL_WAIT, environ=SHORT_LEASE) as second:
        await reaches(conn, job, "done", within=3)  # sooner than the lease ends: the name says that the first is dead
        assert (await task(conn, job))["results"] == {"pid": second.pid}
    assert [n[:3] for n in notes(note)] == [["a", "1", "began"], ["a", "2", "began"], ["a", "2", "ended"],
                                            ["b", "1", "began"], ["b", "1", "ended"]]  # fmt: skip
    await check(conn)


async def test_what_a_stopped_process_writes_late_is_refused_with_its_reason(
    tmp_path: Path, db_url: str, conn: Connection
):
    note, go = tmp_path / "notes", tmp_path / "go"
    with (
        daemon.running(tmp_path, db_url, role="builder", environ=SHORT_LEASE),
        pulling(tmp_path, db_url, PULL_WAIT, environ=SHORT_LEASE) as first,
    ):
        job = await submit(conn, step("a"), options={"note": str(note), "go": str(go)})
        await began(note)
        first.signal(signal.SIGSTOP)
        go.touch()
        with pulling(tmp_path, db_url, PULL_WAIT, process=2, environ=SHORT_LEASE) as second:
            await reaches(conn, job, "done")
            first.signal(signal.SIGCONT)
            await eventually(lambda: first.log("lease_gone") or first.log("refused"), within=10)
            assert (await task(conn, job))["results"] == {"pid": second.pid}
        assert first.stop() == 0
    refused = await conn.fetchval("SELECT data ->> 'reason' FROM task_events WHERE type = 'refused'")
    assert refused in ("already_finished", "stale_attempt", "lease_lost_or_owner_mismatch")
    await check(conn)


async def test_sigterm_lets_tasks_end_and_a_second_one_gives_them_back(tmp_path: Path, db_url: str, conn: Connection):
    note, go = tmp_path / "notes", tmp_path / "go"
    with pulling(tmp_path, db_url, PULL_WAIT, concurrency=1) as service:
        job = await submit(conn, step("a"), options={"note": str(note), "go": str(go)})
        await began(note)
        service.signal(signal.SIGTERM)
        service.wait_for("draining")
        go.touch()
        assert service.process.wait(timeout=10) == 0
        await reaches(conn, job, "done", within=1)
    assert await conn.fetchval("SELECT message FROM task_events WHERE type = 'log'") == "from a library"
    go.unlink()
    with pulling(tmp_path, db_url, PULL_WAIT, concurrency=1) as service:
        job = await submit(conn, step("a"), options={"note": str(note), "go": str(go)})
        await began(note, 2)
        service.signal(signal.SIGTERM)
        service.wait_for("draining", times=2)
        assert service.stop(within=10) == 0
    given_back = await task(conn, job)
    assert (given_back["status"], given_back["attempt"], given_back["lost"]) == ("queued", 0, 0)
    assert notes(note)[-1][2] == "ended", "the function was cancelled, and could clean up"
    await check(conn)


async def test_two_processes_of_a_machine_are_two_nodes(tmp_path: Path, db_url: str, conn: Connection):
    note, go = tmp_path / "notes", tmp_path / "go"
    options = {"note": str(note), "go": str(go)}
    with (
        pulling(tmp_path, db_url, PULL_WAIT, concurrency=1),
        pulling(tmp_path, db_url, PULL_WAIT, concurrency=1, process=2),
    ):
        jobs = [await submit(conn, step("a"), options=options) for _ in range(2)]
        assert len({pid for *_, pid in await began(note, 2)}) == 2
        owners = await conn.fetch("SELECT lease_owner FROM job_tasks ORDER BY 1")
        assert [row[0] for row in owners] == ["m1.render", "m1.render.2"]
        go.touch()
        for job in jobs:
            await reaches(conn, job, "done")
    await check(conn)


async def test_every_task_is_recorded_once_although_the_database_is_cut_off_again_and_again(
    tmp_path: Path, server: TestServer, db_url: str, conn: Connection
):
    note, url = tmp_path / "notes", tcp_url(server, db_url)
    there = urlsplit(url)
    assert there.hostname
    assert there.port
    which = await workflow(conn, step("a"))
    async with Cable.to(there.hostname, there.port) as cable:
        with ExitStack() as stack:
            environ = {"ACC_POLL_DEAF_SEC": "0.2"}
            service = pulling(tmp_path, cable.through(url), PULL_NOTE, concurrency=50, environ=environ)
            await asyncio.to_thread(stack.enter_context, service)  # the cable needs this loop
            for verb in ("finish_tasks", "claim_tasks"):
                cable.lose_answer_to(verb)
                for _ in range(100):
                    await submit_to(conn, which, options={"note": str(note)})
                await eventually(lambda: cable.left_to_lose == 0, within=20)
            cable.cut()
            await _all_done(conn, 200)
    ran = [tuple(words) for words in notes(note)]
    assert len(ran) == 200, "no answer that was lost made anything run twice"
    assert await conn.fetchval("SELECT count(*) FROM job_tasks WHERE status = 'done' AND attempt_id = 1") == 200
    await check(conn)


async def _all_done(conn: Connection, count: int) -> None:
    async def there() -> bool:
        return await conn.fetchval("SELECT count(*) FROM jobs WHERE status = 'done'") == count

    await eventually(there, within=30, interval=0.05)


async def test_a_cancelled_task_stops_where_it_waits(tmp_path: Path, db_url: str, conn: Connection):
    note = tmp_path / "notes"
    with pulling(tmp_path, db_url, PULL_WAIT) as service:
        job = await submit(conn, step("a"), options={"note": str(note), "go": str(tmp_path / "never")})
        await began(note)
        await cancel(conn, job)
        await eventually(lambda: notes(note)[-1][2] == "ended", within=5)
        await asyncio.to_thread(service.wait_for, "abandoned")
    assert await dead_letters(conn, job) == []
    await check(conn)


async def test_the_example_and_the_documented_service_run(tmp_path: Path, db_url: str, conn: Connection):
    doc = (ROOT / "docs" / "writing-a-service.md").read_text()
    (documented,) = [part for part in re.findall(r"^```python\n(.*?)^```", doc, re.M | re.S) if "service.run(" in part]
    for number, text in enumerate([(ROOT / "examples" / "pull" / "wordcount.py").read_text(), documented], 1):
        with pulling(tmp_path, db_url, program=text, process=number):
            job = await submit(conn, step("a", "wordcount"), options={"text": "one two three"})
            await reaches(conn, job, "done")
            assert (await task(conn, job))["results"] == {"words": 3}
    await check(conn)


async def test_one_that_still_waits_for_its_database_can_be_stopped(tmp_path: Path):
    nowhere = "postgresql://nobody@127.0.0.1:1/nothing"
    with pulling(tmp_path, nowhere, ready="waiting_for_database") as service:
        assert service.stop(within=5) == 0
