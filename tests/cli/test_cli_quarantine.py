"""What people see of a quarantine and of a step that fails everywhere, and how they end it."""

import pytest

from accsd.explain.words import short
from tests.support.cli import Cli
from tests.support.cluster import SERVER_NAMES, Clusters, Connection, TestServer
from tests.support.factory import claim, fail, node, started, step, submit_to, workflow

SHUT = "SELECT accs.quarantine($1, 'render', 'three tasks failed', '{}', '30 s')"


@pytest.fixture
def server(clusters: Clusters) -> TestServer:
    return clusters.get(SERVER_NAMES[0])


async def test_a_quarantine_is_seen_and_ended_by_hand(cli: Cli, conn: Connection):
    await node(conn, render=2)
    job_id = await submit_to(conn, await workflow(conn, step("a")))
    await conn.fetchval(SHUT, "n1")
    (await cli("nodes", "show", "n1")).ends(0, "render 0/2 in quarantine", "three tasks failed")
    (await cli("services")).ends(0, "in quarantine on n1")
    (await cli("why", f"{short(job_id)}/a")).ends(0, "render on node n1 is in quarantine: three tasks failed")
    (await cli("nodes", "resume", "n1")).ends(0, "service render on node n1 is out of quarantine")
    (await cli("nodes", "resume", "n1")).ends(0, "node n1 was not drained")
    await conn.fetchval("SELECT accs.note_obstacle('n1', 'render', 'the service takes no task now: 503 full')")
    (await cli("why", f"{short(job_id)}/a")).ends(0, "node n1 takes no render now, for ", "takes no task now: 503 full")
    assert len(await claim(conn)) == 1


async def test_a_service_is_resumed_on_all_nodes(cli: Cli, conn: Connection):
    for name in ("n1", "n2"):
        await node(conn, name, render=2)
        await conn.fetchval(SHUT, name)
    said = await cli("services", "resume", "render")
    said.ends(0, "render on node n1 is out of quarantine", "render on node n2 is out of quarantine")
    assert await conn.fetchval("SELECT count(*) FROM accs.quarantines") == 0


async def test_the_jobs_of_a_step_that_fails_everywhere_say_so(cli: Cli, conn: Connection):
    await node(conn, render=2)
    flow = await workflow(conn, step("a"))
    job_id = await submit_to(conn, flow)
    await fail(conn, *await started(conn))
    await conn.fetch("SELECT * FROM accs.mark_steps($1, '{a}', '{no licence}')", [flow])
    (await cli("job", short(job_id))).ends(0, 'step "a" fails everywhere: no licence')
    (await cli("why", f"{short(job_id)}/a")).ends(0, "its step fails everywhere: no licence")


ENGINE = "the Docker engine does not answer: Cannot connect to the Docker daemon\n→ start it (`systemctl start docker`)"


async def test_an_obstacle_shows_where_people_look_also_while_tasks_run(cli: Cli, conn: Connection):
    await node(conn, render=1, mux=1)
    job_id = await submit_to(conn, await workflow(conn, step("a"), step("b")))
    await started(conn)
    for service in ("render", "mux"):
        await conn.fetchval("SELECT accs.note_obstacle('n1', $1, $2)", service, ENGINE)
    running = await cli("why", f"{short(job_id)}/a")
    running.ends(0, "it runs on node n1", "n1 takes no render now, for ", "the Docker engine does not answer")
    waiting = await cli("why", f"{short(job_id)}/b")
    waiting.ends(0, "1 of 1 slots of render are in use", "the Docker engine does not answer")
    for said in (running, waiting):
        said.ends(0, "→ on n1: start it (`systemctl start docker`)")
    (await cli("nodes")).ends(0, "no mux, render: the Docker engine does not answer")
    (await cli("services")).ends(0, "not on n1: the Docker engine does not answer")
    (await cli("top", "--once")).ends(0, "the Docker engine does not answer")
    await conn.fetch("SELECT accs.node_leaves('n1')")
    assert "Docker" not in (await cli("nodes")).out, "nobody knows how it is there now"


async def test_a_long_reason_is_one_line_in_the_list_and_whole_in_show(cli: Cli, conn: Connection):
    await node(conn, render=1)
    job_id = await submit_to(conn, await workflow(conn, step("a")))
    reason = "image_missing: the image ghost is not on this node: " + "pull access denied for ghost\n" * 30 + "the end"
    await conn.fetchval(SHUT.replace("three tasks failed", reason), "n1")
    words = "the image ghost is not on this node\n→ `docker compose -f compose.yaml build ghost`"
    await conn.fetchval("SELECT accs.note_obstacle('n1', 'render', $1)", words)
    [line] = (await cli("nodes")).ends(0).out.splitlines()[1:]
    assert line.endswith("…")
    assert len(line) < 300
    (await cli("nodes", "show", "n1")).ends(0, "the end")
    (await cli("why", f"{short(job_id)}/a")).ends(
        0, "→ on n1: `docker compose -f compose.yaml build ghost`; then `accsd"
    )
