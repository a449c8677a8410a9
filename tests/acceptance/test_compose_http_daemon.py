"""The daemon serving a service of mode http: killed, drained, told to cancel. One result, and nothing left behind."""

from uuid import UUID

import pytest

from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.compose_node import WAIT, ComposeNode, job_reaches, tasks_of
from tests.support.eventually import eventually
from tests.support.factory import step, submit
from tests.support.objectstore import log_lines

pytestmark = [pytest.mark.needs_docker, pytest.mark.usefixtures("compose_engine"), pytest.mark.xdist_group("compose")]

LINES = 300


def at_work(node: ComposeNode) -> int:
    """How many processes the service has beside the keeper and the HTTP server."""
    (container,) = node.of_service("http")
    return node.docker("exec", container["Id"], "ps", "-o", "args").count("service.py") - 2


async def task_of(conn: Connection, job: UUID) -> dict[str, object]:
    (task,) = (await tasks_of(conn, job)).values()
    return {name: task[name] for name in ("status", "attempt_id", "attempt", "lost", "results")}


async def test_after_kill_9_of_the_daemon_the_same_attempt_ends_and_no_line_is_lost(
    node: ComposeNode, db_url: str, conn: Connection
):
    node.add_http("http", WAIT)
    with node.daemon(db_url) as accsd:
        job = await submit(conn, step("a", "http"), options=node.options(lines=LINES))
        await node.began("a")
        accsd.kill()
    with node.daemon(db_url) as accsd:
        accsd.wait_for("adopted")
        node.go.touch()
        await job_reaches(conn, job, "done")
        await eventually(lambda: at_work(node) == 0, within=10, interval=0.1)
        assert accsd.stop() == 0
    (ran,) = node.executions("a")
    results = {"host": ran.host, "pid": ran.pid, "attempt": 1}
    assert await task_of(conn, job) == {"status": "done", "attempt_id": 1, "attempt": 0, "lost": 0, "results": results}
    lines = await log_lines(conn, node.folder / "state/objects", job, "a")
    assert lines == [f"line {i}" for i in range(2 * LINES)]
    await check(conn)


async def test_what_is_cancelled_or_given_back_is_stopped_in_the_service(
    node: ComposeNode, db_url: str, conn: Connection
):
    node.add_http("http", WAIT)
    with node.daemon(db_url, environ={"ACC_DRAIN_SEC": "0.2"}) as accsd:
        cancelled = await submit(conn, step("a", "http"), options=node.options())
        await node.began("a")
        assert at_work(node) == 1
        await conn.fetch("SELECT * FROM accs.cancel_jobs($1)", [cancelled])
        await eventually(lambda: at_work(node) == 0, within=15, interval=0.1)

        stopped = await submit(conn, step("b", "http"), options=node.options())
        await node.began("b")
        assert accsd.stop() == 0
        assert at_work(node) == 0
    given_back = {"status": "queued", "attempt_id": 1, "attempt": 0, "lost": 0, "results": None}
    assert await task_of(conn, stopped) == given_back
    assert node.ended("a") == node.ended("b") == []
    assert {path.name for path in node.shared.iterdir()} == {"notes"}, "their folders are removed"
    await check(conn)
