"""The dispatcher of outgoing events: signed, in order, persistent, and careful about where it calls."""

import asyncio
import base64
import hashlib
import hmac
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from accsd.builder.outbox import Dispatcher
from accsd.builder.prune import Pruner
from accsd.builder.scheduler import Scheduler
from accsd.db import Database
from accsd.db.outbox import targets
from accsd.log import redact
from accsd.metrics import Metrics
from accsd.settings import OutboxSettings
from tests.support.cluster import Connection
from tests.support.eventually import eventually
from tests.support.factory import chain, done, node, pass_time, step, submit
from tests.support.http_servers import Heard, Receiver, receiver
from tests.support.library import opened
from tests.support.schedules import schedule

SECRET = "a-secret-of-the-studio"


@pytest.fixture
async def db(db_url: str, conn: Connection) -> AsyncIterator[Database]:
    await node(conn)
    async with opened(db_url) as opening:
        yield opening


def dispatcher(db: Database, to: Receiver, metrics: Metrics | None = None, **target: Any) -> Dispatcher:
    common = {"url": to.url, "secret": SECRET, "allow_private": True, "timeout": 20}
    settings = {"retry": 60, "failures": 3, "rest": 30, "targets": {"studio": common | target}}
    return Dispatcher(db, "studio", OutboxSettings.model_validate(settings), metrics=metrics)


def is_signed(heard: Heard, secret: bytes) -> bool:
    """As docs/outbox.md tells receivers to look at it."""
    signed = f"{heard.headers['webhook-id']}.{heard.headers['webhook-timestamp']}.".encode() + heard.body
    wanted = "v1," + base64.b64encode(hmac.new(secret, signed, hashlib.sha256).digest()).decode()
    return any(hmac.compare_digest(wanted, given) for given in heard.headers["webhook-signature"].split())


async def status(conn: Connection) -> list[tuple[str, int, str | None]]:
    rows = await conn.fetch("SELECT status, attempts, last_error FROM outbox_events ORDER BY id")
    return [(row["status"], row["attempts"], row["last_error"]) for row in rows]


async def test_an_outcome_is_delivered_signed_and_counted(db: Database, conn: Connection):
    metrics = Metrics()
    async with receiver() as studio:
        role = dispatcher(db, studio, metrics)
        assert (await role.run_once()).did is None
        job = await submit(conn, step("a"))
        await done(conn)
        told = await role.run_once()
    assert told.did == "events to studio: 1 delivered"
    assert told.more
    [heard] = studio.taken
    assert heard.event["job"]["id"] == str(job)
    assert heard.headers["webhook-id"] == heard.event["id"]
    assert heard.headers["content-type"] == "application/json"
    assert is_signed(heard, SECRET.encode())
    assert not is_signed(heard, b"another secret of somebody")
    assert 'accsd_outbox_total{outcome="delivered"} 1.0' in metrics.render().decode()
    assert "accsd_outbox_pending 0.0" in metrics.render().decode()


async def test_the_events_of_a_job_come_in_order_and_of_several_jobs_side_by_side(db: Database, conn: Connection):
    async with receiver() as studio:
        role = dispatcher(db, studio, events=["job.submitted", "task.done", "job.done"])
        await role.run_once()
        jobs = [await submit(conn, *chain("a", "b")) for _ in range(5)]
        await done(conn, 5)
        await done(conn, 5)
        assert (await role.run_once()).did == "events to studio: 20 delivered"
    for job in jobs:
        assert studio.events_of(job) == ["job.submitted", "task.done", "task.done", "job.done"]


async def test_one_that_fails_holds_back_only_its_own_job(db: Database, conn: Connection):
    async with receiver() as studio:
        role = dispatcher(db, studio, events=["job.submitted", "job.done"])
        await role.run_once()
        bad, good = await submit(conn, step("a")), await submit(conn, step("a"))
        await done(conn, 2)
        studio.refuses.add(bad)
        assert (await role.run_once()).did == "events to studio: 2 delivered, 1 failed"
        assert studio.events_of(good) == ["job.submitted", "job.done"]
        assert [each[1] for each in await status(conn)] == [1, 1, 0, 1]
        waits = await role.run_once()
        assert waits.did is None
        assert waits.next_due is not None
        assert 50 < waits.next_due.total_seconds() <= 66
        studio.refuses.clear()
        await pass_time(conn, 70)
        await role.run_once()
    assert studio.events_of(bad) == ["job.submitted", "job.done"]
    assert (await status(conn))[0] == ("delivered", 2, "answered 500: no memory"), "what was wrong stays readable"


async def test_whatever_goes_wrong_is_written_down_without_the_way_to_the_receiver(db: Database, conn: Connection):
    async with receiver("deaf") as studio:
        role = dispatcher(db, studio, timeout=0.3)
        await role.run_once()
        await submit(conn, step("a"))
        await done(conn)
        await role.run_once()
        studio.close()
        await pass_time(conn, 70)
        await role.run_once()
    [(state, attempts, error)] = await status(conn)
    assert (state, attempts) == ("pending", 2)
    assert error is not None
    assert "Connect call failed" in error
    assert "of-the-studio" not in error
    [target] = await targets(db)
    assert (target.failures, target.address) == (2, f"http://127.0.0.1:{studio.port}")


async def test_a_private_address_is_refused_unless_the_settings_allow_it(db: Database, conn: Connection):
    async with receiver() as studio:
        url = studio.url.replace("http://", "https://")
        role = dispatcher(db, studio, allow_private=False, url=url)
        await role.run_once()
        await submit(conn, step("a"))
        await done(conn)
        await role.run_once()
    assert studio.heard == []
    [(_, _, error)] = await status(conn)
    assert "which is a private address" in (error or "")


async def test_after_failures_in_a_row_it_calls_nobody_until_the_rest_is_over(db: Database, conn: Connection):
    async with receiver("broken") as studio:
        role = dispatcher(db, studio)
        await role.run_once()
        for _ in range(5):
            await submit(conn, step("a"))
        await done(conn, 5)
        await role.run_once()
        assert len(studio.heard) == 5, "all of a batch, side by side"
        [target] = await targets(db)
        assert target.is_open
        await pass_time(conn, 20)
        resting = await role.run_once()
        assert len(studio.heard) == 5
        assert resting.next_due is not None
        await pass_time(conn, 60)
        await role.run_once()
        assert len(studio.heard) == 6, "one asks for all"
        studio.mood = "up"
        await pass_time(conn, 70)
        assert (await role.run_once()).did == "events to studio: 1 delivered"
        assert (await role.run_once()).did == "events to studio: 4 delivered"


async def test_it_gives_up_in_the_end_and_says_so(db: Database, conn: Connection):
    metrics = Metrics()
    async with receiver("broken") as studio:
        role = dispatcher(db, studio, metrics)
        await role.run_once()
        await submit(conn, step("a"))
        await done(conn)
        await pass_time(conn, 8 * 86400)
        assert (await role.run_once()).did == "events to studio: 1 dead"
        studio.mood = "up"
        await pass_time(conn, 86400)
        assert (await role.run_once()).did is None
    assert 'accsd_outbox_total{outcome="dead"} 1.0' in metrics.render().decode()


async def test_what_was_settled_long_ago_leaves_although_no_target_is_left(db: Database, conn: Connection):
    pruner = Pruner(db, OutboxSettings())
    async with receiver() as studio:
        role = dispatcher(db, studio)
        await role.run_once()
        await submit(conn, step("a"))
        await done(conn)
        await role.run_once()
    await conn.execute("SELECT accs.forget_outbox_target('studio')")
    assert (await pruner.run_once()).did is None
    await pass_time(conn, 8 * 86400)
    told = await pruner.run_once()
    assert told.did == "1 old events removed"
    assert told.next_due is not None
    assert await status(conn) == []


async def test_secrets_of_a_file_are_read_anew_and_both_of_a_change_sign(
    db: Database, conn: Connection, tmp_path: Path
):
    secrets = ["first-secret-in-a-file", "whsec_" + base64.b64encode(b"second secret, encoded").decode()]
    path = tmp_path / "secret"
    async with receiver() as studio:
        role = dispatcher(db, studio, secret=None, secret_file=path)
        await role.run_once()
        await submit(conn, step("a"))
        await done(conn)
        await role.run_once()
        assert "can't be read: No such file" in ((await status(conn))[0][2] or "")
        path.write_text("\n".join(secrets))
        await pass_time(conn, 70)
        await role.run_once()
    [heard] = studio.taken
    assert is_signed(heard, secrets[0].encode())
    assert is_signed(heard, b"second secret, encoded")
    assert secrets[1] not in redact(f"it was {secrets[1]}")


async def test_who_is_stopped_while_the_receiver_thinks_gives_back_what_was_not_sent(db: Database, conn: Connection):
    async with receiver("deaf") as studio:
        role = dispatcher(db, studio, events=["job.submitted", "job.done"], timeout=60)
        await role.run_once()
        job = await submit(conn, step("a"))
        await done(conn)
        sending = asyncio.create_task(role.run_once())
        await eventually(lambda: studio.heard)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        studio.mood = "up"
        await role.run_once()
    assert studio.events_of(job) == ["job.submitted", "job.done"]


async def test_two_builders_share_the_work_and_send_nothing_twice(db: Database, conn: Connection):
    async with receiver() as studio:
        roles = [dispatcher(db, studio) for _ in range(2)]
        await roles[0].run_once()
        for _ in range(40):
            await submit(conn, step("a"))
        await done(conn, 40)
        passes = await asyncio.gather(*(role.run_once() for role in roles))
        while any(each.did for each in passes):
            passes = await asyncio.gather(*(role.run_once() for role in roles))
    assert len(studio.heard) == 40
    assert len({heard.event["id"] for heard in studio.heard}) == 40


async def test_a_schedule_that_misses_its_time_is_told_to_a_receiver_signed(db: Database, conn: Connection):
    """LG7, from the due time to the webhook."""
    async with receiver() as studio:
        role = dispatcher(db, studio, events=["schedule.missed", "schedule.skipped", "schedule.broken"])
        await role.run_once()
        await schedule(conn, 60, missed="skip", name="nightly")
        await pass_time(conn, 130)
        await Scheduler(db, node="n1", metrics=Metrics()).run_once()
        assert (await role.run_once()).did == "events to studio: 1 delivered"
    [heard] = studio.taken
    assert (heard.event["event"], heard.event["schedule"]["name"]) == ("schedule.missed", "nightly")
    assert heard.event["schedule"]["reason"] == "down"
    assert heard.headers["webhook-id"] == heard.event["id"]
    assert is_signed(heard, SECRET.encode())
