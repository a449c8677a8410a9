"""NOTIFY is a hint: with LISTEN cut, silent or impossible the daemon works on by polling, says so, and listens again as
soon as it can."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError

from tests.support import daemon
from tests.support.cable import Cable
from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.daemon import Daemon
from tests.support.eventually import eventually
from tests.support.factory import step, submit
from tests.support.fleet import is_done, pickup
from tests.support.tasks import counted_service, executions

# Nobody polls while the test lasts, so what is done was heard of.
NEVER = "3600"
NOWHERE = ("127.0.0.1", 1)


@asynccontextmanager
async def serving(folder: Path, url: str, **environ: str) -> AsyncGenerator[Daemon]:
    """A daemon that counts its executions in `notes`."""
    config = counted_service("render", folder / "notes", node="n1")
    with daemon.running(folder, url, config=config, environ=environ, http=True) as accsd:
        yield accsd


async def hearing(accsd: Daemon, state: str, *, within: float = 15) -> dict[str, Any]:
    """What /health says once the listener is in that state."""

    def there() -> dict[str, Any] | None:
        try:
            health = accsd.health()
        except URLError:  # it opens its port when everything else is under way
            return None
        assert health["listener"]["state"] == state, health
        return health

    health = await eventually(there, within=within, interval=0.05)
    assert health is not None
    return health


async def picked_up_at_once(conn: Connection, jobs: int = 3) -> None:
    for _ in range(jobs):
        job = await submit(conn, step("a"))
        await is_done(conn, job)
        assert await pickup(conn, job) < 1


async def test_with_listen_cut_the_poll_does_the_work_and_it_listens_again_by_itself(
    tmp_path: Path, db_url: str, conn: Connection, cable: Cable, by_cable: str
):
    ways = {"ACC_DB_LISTEN_URL": by_cable, "ACC_POLL_SEC": NEVER, "ACC_POLL_DEAF_SEC": "0.5"}
    async with serving(tmp_path, db_url, **ways) as accsd:
        await hearing(accsd, "listening")
        await picked_up_at_once(conn)

        there, cable.target = cable.target, NOWHERE
        cable.cut()
        health = await hearing(accsd, "deaf")
        assert health["listener"]["reason"] == "the connection was closed"
        assert health["status"] == "degraded"
        assert health["ready"]
        assert any("notifications do not arrive" in reason for reason in health["reasons"])
        await is_done(conn, await submit(conn, step("a"), step("b", after="a"), step("c", after="b", for_each=2)))

        cable.target = there
        health = await hearing(accsd, "listening")
        assert (health["status"], health["reasons"]) == ("ok", [])
        await picked_up_at_once(conn)
        assert 'accsd_listener_state{state="listening"} 1.0' in accsd.metrics()
    assert set(executions(tmp_path / "notes").values()) == {1}
    await check(conn)


async def test_a_silent_listen_connection_is_noticed_by_a_probe(
    tmp_path: Path, db_url: str, conn: Connection, cable: Cable, by_cable: str
):
    """The connection stays open on this side, as behind a firewall that forgot it."""
    ways = {"ACC_DB_LISTEN_URL": by_cable, "ACC_POLL_SEC": "5", "ACC_POLL_DEAF_SEC": "0.5"}
    async with serving(tmp_path, db_url, **ways) as accsd:
        await hearing(accsd, "listening")
        cable.fall_silent()
        unheard = await submit(conn, step("a"))
        await is_done(conn, unheard)
        assert accsd.health()["listener"]["state"] == "listening", "nobody can know yet, and the work is done"

        health = await hearing(accsd, "deaf", within=30)
        assert health["listener"]["reason"] == "a notification to itself did not come back within 5 s"
        await is_done(conn, await submit(conn, step("a")))

        cable.flow_again()
        await hearing(accsd, "listening", within=20)
        await picked_up_at_once(conn, jobs=4)


async def test_behind_a_transaction_pooler_it_polls_and_says_why(tmp_path: Path, bouncer_url: str, conn: Connection):
    async with serving(tmp_path, bouncer_url, ACC_POLL_SEC=NEVER, ACC_POLL_DEAF_SEC="0.5") as accsd:
        health = await hearing(accsd, "polling")
        assert health["listener"]["reason"] == "behind a transaction pooler, where LISTEN hears nothing"
        for _ in range(3):
            await is_done(conn, await submit(conn, step("a"), step("b", after="a")))
        health = accsd.health()
        assert (health["status"], health["reasons"]) == ("ok", []), "it is known, and no fault that would pass"
        [said] = accsd.log("polling")
        assert "ACC_DB_LISTEN_URL" in said["hint"]
        assert accsd.stop() == 0
    assert set(executions(tmp_path / "notes").values()) == {1}
    await check(conn)


async def test_with_a_way_past_the_pooler_it_listens(tmp_path: Path, bouncer_url: str, db_url: str, conn: Connection):
    ways = {"ACC_DB_LISTEN_URL": db_url, "ACC_POLL_SEC": NEVER, "ACC_POLL_DEAF_SEC": NEVER}
    async with serving(tmp_path, bouncer_url, **ways) as accsd:
        await hearing(accsd, "listening")
        await picked_up_at_once(conn)
