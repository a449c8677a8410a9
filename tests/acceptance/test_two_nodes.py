"""Two nodes on machines of their own (network namespaces) and a control host: capacity and labels are respected under
load, and what a dead or cut-off node held runs on the other."""

import json
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import pytest

from tests.support import daemon
from tests.support.checker import check
from tests.support.cluster import Connection, TestServer, make_template, run_in_thread
from tests.support.daemon import Daemon
from tests.support.eventually import eventually
from tests.support.factory import step, submit
from tests.support.fleet import all_are, claims, clock, is_done, submit_many
from tests.support.library import name_in
from tests.support.own_server import own_server
from tests.support.privileged import Host, hosts
from tests.support.tasks import counted_service, executions, most_at_once, noted

pytestmark = pytest.mark.xdist_group("hosts")  # its hosts and their PostgreSQL are made once

LEASE = timedelta(seconds=4)
SHORT_LEASE = {"ACC_HEARTBEAT_TTL_SEC": "4"}


class Site(NamedTuple):
    """Two hosts, and a server that both can reach."""

    hosts: list[Host]
    server: TestServer

    def url_for(self, host: Host, db_url: str) -> str:
        assert self.server.launched is not None
        return self.server.launched.tcp_url_of(name_in(db_url)).replace("@127.0.0.1:", f"@{host.here}:")


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with hosts(2) as made:
        addresses = ",".join(["127.0.0.1", *(host.here for host in made)])
        # whether or not an answer is under way, sessions of a node that was cut off have gone when the test ends
        impatient = {"tcp_keepalives_idle": "1", "tcp_keepalives_interval": "1", "tcp_user_timeout": "2000"}
        with own_server(listen_addresses=addresses, **impatient) as own:
            url_of = own.start().url_of
            with own.pg_hba.open("a") as hba:
                hba.writelines(f"host all all {host.here}/30 scram-sha-256\n" for host in made)
            version = run_in_thread(make_template(url_of, "made_for_clones"))
            yield Site(made, TestServer("own", version, "made_for_clones", url_of, own.now))


@pytest.fixture(scope="module")
def server(site: Site) -> TestServer:
    return site.server


@contextmanager
def node(site: Site, number: int, folder: Path, db_url: str, config: str, **environ: str) -> Generator[Daemon]:
    """An agent on the host of that number, as node n1 or n2; the state folders are its own, too."""
    host, name = site.hosts[number - 1], f"n{number}"
    with daemon.running(
        folder / name,
        site.url_for(host, db_url),
        role="agent",
        node=name,
        config=config,
        environ={**SHORT_LEASE, **environ},
        prefix=host.prefix,
    ) as accsd:
        accsd.wait_for("node_registered")
        yield accsd


@contextmanager
def control_host(folder: Path, db_url: str) -> Generator[Daemon]:
    with daemon.running(folder, db_url, role="builder", node="control", environ=SHORT_LEASE) as accsd:
        accsd.wait_for("listening")
        yield accsd


async def ran_on(conn: Connection, notes: Path, key: str) -> Counter[str]:
    """On which nodes the steps of that key were executed, as the commands themselves noted."""
    ids = {str(row["id"]) for row in await conn.fetch("SELECT id FROM job_tasks WHERE task_key = $1", key)}
    return Counter(line.node for line in noted(notes, "begin") if line.task in ids)


@pytest.mark.usefixtures("reloaded")
async def test_capacity_and_labels_are_respected_under_many_jobs(
    tmp_path: Path, site: Site, db_url: str, conn: Connection
):
    notes = tmp_path / "notes"

    def services(name: str, **concurrency: int) -> str:
        return "".join(
            counted_service(service, notes, node=name, work=0.2, concurrency=n) for service, n in concurrency.items()
        )

    with (
        control_host(tmp_path, db_url),
        node(site, 1, tmp_path, db_url, services("n1", render=2, audio=1), ACC_NODE_LABELS="gpu=true"),
        # the variable wins over the file
        node(site, 2, tmp_path, db_url, services("n2", render=1, audio=2), ACC_MAX_CONCURRENCY_RENDER="3"),
    ):
        jobs = await submit_many(
            conn,
            15,
            step("anywhere"),
            step("gpu", requires={"gpu": True}),
            step("pinned", "audio", node="n2"),
            step("last", "audio", after="anywhere gpu pinned"),
        )
        await all_are(conn, jobs, "done", within=60)

    assert most_at_once(notes) == {
        ("n1", "render"): 2,
        ("n1", "audio"): 1,
        ("n2", "render"): 3,
        ("n2", "audio"): 2,
    }, "as many as allowed, and not one more"
    assert await ran_on(conn, notes, "gpu") == {"n1": 15}
    assert await ran_on(conn, notes, "pinned") == {"n2": 15}
    assert sum((await ran_on(conn, notes, "anywhere")).values()) == 15
    assert set(executions(notes).values()) == {1}
    assert len(executions(notes)) == 60
    await check(conn, timedelta(0), acknowledged=jobs)


@pytest.mark.usefixtures("reloaded")
async def test_what_a_dead_node_held_runs_on_the_other_within_two_seconds_of_the_lease(
    tmp_path: Path, site: Site, db_url: str, conn: Connection
):
    notes = tmp_path / "notes"
    slow = counted_service("render", notes, node="n1", work=60, concurrency=3)
    quick = counted_service("render", notes, node="n2", work=0, concurrency=3)
    with control_host(tmp_path, db_url), node(site, 1, tmp_path, db_url, slow) as first:
        jobs = await submit_many(conn, 3, step("a"))
        await eventually(lambda: len(noted(notes, "begin")) == 3, within=20)
        with node(site, 2, tmp_path, db_url, quick):
            site.hosts[0].lose_power(first.pid)
            died = await clock(conn)
            await all_are(conn, jobs, "done")

    for job in jobs:
        assert [owner for _, owner in await claims(conn, job)] == ["n1", "n2"]
        taken_over = (await claims(conn, job))[1][0] - died
        assert taken_over < LEASE + timedelta(seconds=2)
    assert [line.node for line in noted(notes, "begin")] == ["n1"] * 3 + ["n2"] * 3
    assert {line.node for line in noted(notes, "end")} == {"n2"}
    assert set(executions(notes).values()) == {1}
    budget = await conn.fetch("SELECT attempt, attempt_id, lost FROM job_tasks")
    assert {tuple(row) for row in budget} == {(0, 2, 1)}, "a dead node spends no attempt"
    await check(conn, timedelta(seconds=2))


@pytest.mark.usefixtures("reloaded")
async def test_a_lease_given_while_the_control_host_slept_is_taken_back_in_time(
    tmp_path: Path, site: Site, db_url: str, conn: Connection
):
    """Its cleanup had nothing to look after when it last looked, and nothing tells it of a claim."""
    notes = tmp_path / "notes"
    with (
        control_host(tmp_path, db_url),
        node(site, 2, tmp_path, db_url, counted_service("audio", notes, node="n2")),
        node(site, 1, tmp_path, db_url, counted_service("render", notes, node="n1", work=60)) as first,
    ):
        job = await submit(conn, step("a"))
        await eventually(lambda: noted(notes, "begin"), within=20)
        site.hosts[0].lose_power(first.pid)
        died = await clock(conn)

        async def taken_back() -> bool:
            return await conn.fetchval("SELECT status FROM job_tasks WHERE job_id = $1", job) == "queued"

        await eventually(taken_back, within=30)
        assert await clock(conn) - died < LEASE + timedelta(seconds=2)


_ALIVE = """
exec >>"$1"
echo "$2 $ACC_ATTEMPT_ID $(date +%s.%N)"
while [ "$2" = n1 ]; do
  sleep 0.05
  echo "$2 $ACC_ATTEMPT_ID $(date +%s.%N)"
done
"""


def alive(path: Path, name: str) -> str:
    """On n1 it never ends, and says again and again that it lives."""
    command = ["/bin/sh", "-c", _ALIVE, "alive", str(path), name]
    return f'[services.render]\nrunner = "process"\ncommand = {json.dumps(command)}\n'


def moments(path: Path, name: str) -> list[float]:
    lines = path.read_text().splitlines() if path.exists() else []
    return [float(line.split()[2]) for line in lines if line.startswith(name)]


@pytest.mark.usefixtures("reloaded")
async def test_a_node_without_network_stops_its_work_before_another_begins_it_and_comes_back(
    tmp_path: Path, site: Site, db_url: str, conn: Connection
):
    lives = tmp_path / "lives"
    with control_host(tmp_path, db_url), node(site, 1, tmp_path, db_url, alive(lives, "n1")) as first:
        job = await submit(conn, step("a"))
        await eventually(lambda: len(moments(lives, "n1")) > 2, within=20)
        with node(site, 2, tmp_path, db_url, alive(lives, "n2")):
            site.hosts[0].plug(connected=False)
            try:
                died = await clock(conn)
                await is_done(conn, job)
                assert [owner for _, owner in await claims(conn, job)] == ["n1", "n2"]
                assert (await claims(conn, job))[1][0] - died < LEASE + timedelta(seconds=2)
                assert max(moments(lives, "n1")) < min(moments(lives, "n2")), "never both at once"
                first.wait_for("lease_gone", reason="not_kept_in_time")
            finally:
                site.hosts[0].plug(connected=True)
            back = await submit(conn, step("a", node="n1"))
            await eventually(lambda: claimed_by(conn, back, "n1"), within=20)
            site.hosts[0].lose_power(first.pid)  # its task would go on for ever
    assert await conn.fetchval("SELECT max(attempt) FROM job_tasks") == 0
    await check(conn)


async def claimed_by(conn: Connection, job: UUID, node: str) -> bool:
    return await conn.fetchval("SELECT claimed_by FROM job_tasks WHERE job_id = $1", job) == node
