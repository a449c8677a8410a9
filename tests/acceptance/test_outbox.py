"""Webhooks of a real daemon: whatever the receiver does, work goes on, and every event arrives in the end, in order."""

from pathlib import Path

from tests.support import daemon
from tests.support.cluster import Connection
from tests.support.eventually import eventually
from tests.support.factory import chain, pass_time, step, submit
from tests.support.fleet import all_are, is_done, submit_many
from tests.support.http_servers import Receiver, receiver
from tests.support.tasks import NOTE, toml_service

SECRET = "a-secret-of-the-studio"
STEPS = ["job.submitted", "task.done", "task.done", "job.done"]


def config(studio: Receiver) -> str:
    return f"""
[outbox]
retry = "100ms"
longest_retry = "400ms"
failures = 3
rest = "100ms"
longest_rest = "400ms"
[outbox.targets.studio]
url = "{studio.url}"
secret = "{SECRET}"
events = ["job.submitted", "task.done", "job.done"]
allow_private = true
timeout = "300ms"
{toml_service("render", NOTE, concurrency=4)}"""


async def test_a_receiver_that_is_down_then_slow_then_broken_then_up_gets_every_event_in_order(
    tmp_path: Path, db_url: str, conn: Connection
):
    given = {"note": str(tmp_path / "notes")}
    async with receiver("deaf") as studio:
        studio.close()
        with daemon.running(tmp_path, db_url, config=config(studio), http=True) as accsd:
            accsd.wait_for("outbox_target_registered")
            jobs = await submit_many(conn, 3, *chain("a", "b"), options=given)
            await all_are(conn, jobs, "done")
            accsd.wait_for("outbox_failed", times=4)
            await studio.open()
            jobs += await submit_many(conn, 3, *chain("a", "b"), options=given)
            await all_are(conn, jobs, "done")
            await eventually(lambda: studio.heard, within=20)
            studio.mood = "broken"
            jobs += await submit_many(conn, 3, *chain("a", "b"), options=given)
            await all_are(conn, jobs, "done")
            await eventually(lambda: "answered 500" in accsd.tail(), within=20)
            assert studio.taken == [], "all that was done, while it took nothing"
            studio.mood = "up"
            jobs += await submit_many(conn, 3, *chain("a", "b"), options=given)
            await eventually(lambda: all(studio.events_of(job) == STEPS for job in jobs), within=20)
            await eventually(lambda: "accsd_outbox_pending 0.0" in accsd.metrics(), within=20)
            assert len(studio.taken) == len(jobs) * len(STEPS), "none twice"
            assert SECRET not in accsd.log_file.read_text()
            assert accsd.stop() == 0
    assert await conn.fetchval("SELECT count(*) FROM outbox_events WHERE status <> 'delivered'") == 0


async def test_a_daemon_that_dies_between_sending_and_writing_down_sends_the_same_event_again(
    tmp_path: Path, db_url: str, conn: Connection
):
    async with receiver() as studio:
        settings = config(studio)
        with daemon.running(tmp_path, db_url, config=settings, environ={"ACC_FAILPOINTS": "outbox.sent:kill"}) as accsd:
            accsd.wait_for("outbox_target_registered")
            job = await submit(conn, step("a"), options={"note": str(tmp_path / "notes")})
            accsd.process.wait(timeout=20)
        with daemon.running(tmp_path, db_url, config=settings) as accsd:
            await is_done(conn, job)
            await pass_time(conn, 15)
            await eventually(lambda: studio.events_of(job) == ["job.submitted", "task.done", "job.done"], within=20)
            assert accsd.stop() == 0
    ids = [heard.headers["webhook-id"] for heard in studio.taken]
    assert len(ids) > len(set(ids)) == 3, "which the receiver sees by its id"
