"""Machines in one network behind a switch (namespaces and a bridge): a real magic packet starts the agent of a sleeping
host; where the switch lets none through a neighbour sends it; where nobody can, the work goes elsewhere."""

import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import pytest

from accsd.explain.words import short
from tests.support import daemon
from tests.support.checker import check
from tests.support.cli import Cli
from tests.support.cluster import Connection, TestServer, make_template, run_in_thread
from tests.support.daemon import Daemon
from tests.support.eventually import eventually, eventually_sync
from tests.support.factory import step, submit, workflow
from tests.support.fleet import is_done
from tests.support.library import name_in
from tests.support.own_server import own_server
from tests.support.privileged import Lan, lan
from tests.support.tasks import counted_service, noted

pytestmark = pytest.mark.xdist_group("lan")  # its network and its PostgreSQL are made once

CONTROL, SLEEPER, PEER = range(3)

# What a network card does while its machine sleeps: it looks for its own address, sixteen times, in any frame. Then it
# becomes the machine's agent. It writes down from where the packet came.
_CARD = """
import os, socket, sys
mac, notes, *agent = sys.argv[1:]
magic = b"\\xff" * 6 + bytes.fromhex(mac.replace(":", "")) * 16
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as card:
    card.bind(("eth0", 0))
    open(notes, "w").close()
    while magic not in (frame := card.recv(2048)):
        pass
with open(notes, "w") as file:
    file.write(socket.inet_ntoa(frame[26:30]))
os.execv(agent[0], agent)
"""
_BELL = 'while [ ! -e "$0" ]; do sleep 0.05; done; exec "$@"'


class Site(NamedTuple):
    lan: Lan
    server: TestServer

    def url(self, db_url: str) -> str:
        assert self.server.launched is not None
        return self.server.launched.tcp_url_of(name_in(db_url)).replace("@127.0.0.1:", f"@{self.lan.here}:")


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with lan(3) as made, own_server(listen_addresses=f"127.0.0.1,{made.here}") as own:
        url_of = own.start().url_of
        with own.pg_hba.open("a") as hba:
            hba.write(f"host all all {made.network} scram-sha-256\n")
        version = run_in_thread(make_template(url_of, "made_for_clones"))
        yield Site(made, TestServer("own", version, "made_for_clones", url_of, own.now))


@pytest.fixture(scope="module")
def server(site: Site) -> TestServer:
    return site.server


@contextmanager
def control_host(site: Site, folder: Path, db_url: str, **wake: str) -> Generator[Daemon]:
    settings = "[wake]\n" + "".join(f"{name} = {value}\n" for name, value in wake.items())
    prefix = site.lan.hosts[CONTROL].prefix
    with daemon.running(
        folder,
        site.url(db_url),
        role="builder",
        node="control",
        config=settings,
        environ={"ACC_POLL_SEC": "60"},  # what it does, it has heard of
        prefix=prefix,
    ) as it:
        it.wait_for("listening")
        yield it


@contextmanager
def agent(site: Site, folder: Path, db_url: str, name: str, service: str, prefix: list[str]) -> Generator[Daemon]:
    config = counted_service(service, folder / "notes", node=name)
    with daemon.running(
        folder / name, site.url(db_url), role="agent", node=name, config=config, prefix=prefix, ready=False
    ) as it:
        yield it


@contextmanager
def peer(site: Site, folder: Path, db_url: str) -> Generator[None]:
    """Awake, in the same network, and of no use for the work itself."""
    with agent(site, folder, db_url, "peer", "audio", site.lan.hosts[PEER].prefix) as it:
        it.wait_for("node_registered")
        yield


@contextmanager
def sleeper(site: Site, folder: Path, db_url: str) -> Generator[Path]:
    """A host of which only the card is awake. What it returns holds who sent the packet, once one has come."""
    sender = folder / "sender"
    card = [sys.executable, "-c", _CARD, site.lan.mac(SLEEPER), str(sender)]
    with agent(site, folder, db_url, "n1", "render", [*site.lan.hosts[SLEEPER].prefix, *card]):
        eventually_sync(sender.exists, within=10)
        yield sender


async def it_went_to_sleep(conn: Connection, site: Site) -> None:
    register = (
        "SELECT * FROM accs.register_node('n1', '{}', '{\"render\": 1}', 'wol', $1, p_networks => $2::text[]::cidr[])"
    )
    await conn.fetch(register, site.lan.mac(SLEEPER), [site.lan.network])
    await conn.fetch("SELECT accs.node_leaves('n1', 'sleep')")


async def calls(conn: Connection, job: UUID | None = None) -> list[tuple[str, str, bool]]:
    rows = await conn.fetch(
        "SELECT data FROM task_events WHERE type = 'wake' AND ($1::uuid IS NULL OR job_id = $1) ORDER BY id", job
    )
    return [(row["data"]["node"], row["data"]["method"], row["data"]["ok"]) for row in rows]


async def ran_on(conn: Connection, job: UUID) -> str:
    return await conn.fetchval("SELECT claimed_by FROM job_tasks WHERE job_id = $1", job)


@pytest.mark.usefixtures("reloaded")
async def test_a_magic_packet_arrives_the_agent_starts_and_the_job_runs(
    tmp_path: Path, site: Site, db_url: str, conn: Connection
):
    site.lan.isolate()
    await it_went_to_sleep(conn, site)
    with control_host(site, tmp_path, db_url), sleeper(site, tmp_path, db_url) as sender:
        job = await submit(conn, step("a"))
        await is_done(conn, job)

    assert sender.read_text() == site.lan.address(CONTROL)
    assert await calls(conn) == [("n1", "wol", True)]
    assert (await ran_on(conn, job), len(noted(tmp_path / "notes", "end"))) == ("n1", 1)
    power = await conn.fetchrow("SELECT * FROM accs.power")
    assert power is not None
    assert (power["state"], power["brought_by"]) == ("ready", "wol")
    assert [str(network) for network in power["networks"]] == [site.lan.network], "as the agent itself says"
    assert 0.2 < power["last_latency"].total_seconds() < 20
    states = await conn.fetch("SELECT state FROM accs.node_history ORDER BY id")
    assert [row["state"] for row in states] == ["ready", "asleep", "booting", "ready"]
    await check(conn)


@pytest.mark.usefixtures("reloaded")
async def test_a_machine_is_woken_in_time_for_a_schedule(tmp_path: Path, site: Site, db_url: str, conn: Connection):
    """WK1, WK3, WK4: called before the due time by as much as the machine usually needs; claimed when it is due."""
    site.lan.isolate()
    await it_went_to_sleep(conn, site)
    await conn.execute("UPDATE accs.power SET latency = '5 s'")  # so it is called 11 s before it is needed
    await workflow(conn, step("a"), name="nightly")
    due = await conn.fetchval("SELECT date_trunc('second', now()) + interval '20 s'")
    with control_host(site, tmp_path, db_url), sleeper(site, tmp_path, db_url):
        await conn.execute(
            "INSERT INTO schedules (name, schedule_kind, schedule_expr, workflow)"
            " VALUES ('nightly', 'once', $1, 'nightly')",
            due.isoformat(),
        )
        await eventually(lambda: _is_said(conn, "for schedule nightly"), within=10)
        await eventually(lambda: conn.fetchval("SELECT count(*) FROM jobs WHERE status = 'done'"), within=40)
    called = await conn.fetchrow("SELECT called_at, last_latency FROM accs.power")
    claimed = await conn.fetchval("SELECT claimed_at FROM job_tasks")
    assert called is not None
    asleep = await conn.fetch("SELECT ts, data FROM accs.node_history WHERE state = 'booting'")
    assert asleep[0]["ts"] <= due - timedelta(seconds=9)
    assert asleep[0]["data"]["schedule"] == "nightly"
    assert due <= claimed < due + timedelta(seconds=1)
    await check(conn)


async def _is_said(conn: Connection, words: str) -> bool:
    said: str | None = await conn.fetchval("SELECT because FROM accs.power WHERE node = 'n1'")
    return words in (said or "")


@pytest.mark.usefixtures("reloaded")
async def test_where_the_packet_does_not_get_through_a_neighbour_sends_it(
    tmp_path: Path, site: Site, db_url: str, conn: Connection
):
    site.lan.isolate(CONTROL, SLEEPER)
    await it_went_to_sleep(conn, site)
    with (
        peer(site, tmp_path, db_url),
        control_host(site, tmp_path, db_url, boot='"2s"', rounds="1"),
        sleeper(site, tmp_path, db_url) as sender,
    ):
        job = await submit(conn, step("x", "audio"), step("a", after="x"))
        await eventually(sender.read_text, within=20)
        await is_done(conn, job)

    assert sender.read_text() == site.lan.address(PEER)
    assert (await calls(conn))[:2] == [("n1", "wol", True), ("n1", "relay", True)]
    assert await conn.fetchval("SELECT brought_by FROM accs.power WHERE node = 'n1'") == "relay"
    order = await conn.fetchrow("SELECT node, target, asked_by, ok FROM accs.node_orders")
    assert order is not None
    assert tuple(order) == ("peer", "n1", "control", True)
    await check(conn)


@pytest.mark.usefixtures("reloaded")
async def test_where_nobody_reaches_it_the_job_runs_elsewhere_and_why_says_what_was_tried(
    tmp_path: Path, site: Site, db_url: str, conn: Connection
):
    site.lan.isolate(CONTROL, SLEEPER, PEER)
    await it_went_to_sleep(conn, site)
    bell = tmp_path / "bell"
    script = tmp_path / "ring"
    script.write_text(f"#!/bin/sh\ntouch {bell}\n")
    script.chmod(0o755)
    register = "SELECT * FROM accs.register_node('spare', '{}', '{\"render\": 1}', 'script', p_script => $1)"
    await conn.fetch(register, str(script))
    await conn.fetch("SELECT accs.node_leaves('spare', 'sleep')")
    with (
        peer(site, tmp_path, db_url),
        control_host(site, tmp_path, db_url, boot='"1s"', rounds="1"),
        sleeper(site, tmp_path, db_url) as sender,
        # where the peer is: once it is awake it is a neighbour, too
        agent(
            site, tmp_path, db_url, "spare", "render", [*site.lan.hosts[PEER].prefix, "/bin/sh", "-c", _BELL, str(bell)]
        ),
    ):
        job = await submit(conn, step("a"))
        await is_done(conn, job)
        assert await ran_on(conn, job) == "spare"
        assert (await calls(conn, job))[0] == ("n1", "wol", True)
        assert ("spare", "script", True) in await calls(conn, job)

        pinned = await submit(conn, step("a", node="n1"))

        async def has_failed() -> bool:
            return await conn.fetchval("SELECT state FROM accs.power WHERE node = 'n1'") == "failed"

        await eventually(has_failed, within=20)
        made = [call for call in await calls(conn) if call[0] == "n1"]
        assert made == [("n1", "wol", True), ("n1", "relay", True)], "one round, and then the breaker is open"
        said = await Cli(db_url)("why", short(pinned))
        said.ends(
            0,
            "node n1 is asleep, and waking it has failed: it did not come after 2 calls by wol, relay",
            "asked again at",
        )
        assert sender.read_text() == "", "no packet has reached it"
