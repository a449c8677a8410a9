"""The daemon serving its node's compose file: real engine, real compose, services in every mode."""

import asyncio
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support import daemon
from tests.support.checker import check
from tests.support.cli import ACCSD, Cli
from tests.support.cluster import Connection
from tests.support.compose_node import (
    EATS_MEMORY,
    FLOODS,
    IGNORES_TERM,
    PASS_ON,
    WAIT,
    ComposeNode,
    job_reaches,
    living,
    tasks_of,
)
from tests.support.eventually import eventually
from tests.support.factory import chain, step, submit
from tests.support.objectstore import log_lines
from tests.support.tasks import notes

pytestmark = [pytest.mark.needs_docker, pytest.mark.usefixtures("compose_engine"), pytest.mark.xdist_group("compose")]


async def test_a_workflow_goes_through_all_modes_and_an_idle_service_is_stopped(
    node: ComposeNode, db_url: str, conn: Connection
):
    node.add("inside", "exec", PASS_ON, {"accs.idle-stop": "2s"})
    node.add("apart", "run", PASS_ON)
    node.add_process("plain", PASS_ON)
    node.add_neighbours()
    services = ("inside", "apart", "plain", "inside")
    steps = [{**each, "service": service} for each, service in zip(chain("a", "b", "c", "d"), services, strict=True)]
    with node.daemon(db_url) as accsd:
        accsd.wait_for("node_registered")
        assert node.of_service("inside") == [], "nothing is started before there is work"
        job = await submit(conn, *steps, options=node.options())
        await job_reaches(conn, job, "done")
        await eventually(lambda: node.of_service("inside")[0]["State"]["Status"] == "exited", within=30, interval=0.2)
        assert accsd.wait_for("service_stopped", service="inside")["idle_for"] >= 2
        (inside,) = node.of_service("inside")
        assert accsd.stop() == 0
    hosts = {note[0]: note[3] for note in notes(node.note)}
    assert list(hosts) == ["a", "b", "c", "d"], "each ran once"
    assert hosts["a"] == hosts["d"] == inside["Id"][:12]
    assert len(set(hosts.values())) == 3
    assert (await tasks_of(conn, job))["d"]["results"] == {"count": 4}
    last = await conn.fetchval(
        "SELECT key FROM task_artifacts WHERE job_id = $1 AND kind = 'output' ORDER BY key DESC", job
    )
    objects = node.folder / "state/objects"
    assert (objects / last).read_text() == "a b c d "
    for key, files in zip("abcd", (0, 1, 1, 1), strict=True):
        assert await log_lines(conn, objects, job, key) == [f"{key} got {files} files"]
    assert {path.name for path in node.shared.iterdir()} == {"notes"}, "the folders of exec tasks are removed"
    assert node.ours() == []
    node.neighbours_are_untouched()
    await check(conn)


async def test_what_is_cancelled_or_given_back_leaves_nothing_behind(node: ComposeNode, db_url: str, conn: Connection):
    node.add("run", "run", WAIT)
    node.add("exec", "exec", WAIT)
    node.add_neighbours()
    with node.daemon(db_url, environ={"ACC_DRAIN_SEC": "0.2"}) as accsd:
        cancelled = await submit(conn, step("run", "run"), step("exec", "exec"), options=node.options())
        await node.began("run", "exec")
        tasks = [task["id"] for task in (await tasks_of(conn, cancelled)).values()]
        assert all(living(task, 1) for task in tasks)
        await conn.fetch("SELECT * FROM accs.cancel_jobs($1)", [cancelled])
        await eventually(lambda: not any(living(task, 1) for task in tasks), within=15)
        await node.none_left()

        stopped = await submit(conn, step("run2", "run"), step("exec2", "exec"), options=node.options())
        await node.began("run2", "exec2")
        assert accsd.stop() == 0
    assert node.ours() == []
    for task in (await tasks_of(conn, stopped)).values():
        assert (task["status"], task["attempt"], task["lost"]) == ("queued", 0, 0)
        assert living(task["id"], 1) == []
    assert len(node.executions()) == 4
    assert [node.ended(key) for key in ("run", "exec", "run2", "exec2")] == [[], [], [], []]
    assert not list((node.folder / "state" / node.name / "attempts").iterdir())
    node.neighbours_are_untouched()
    await check(conn)


async def test_a_task_beyond_its_limits_is_stopped_and_told_why(node: ComposeNode, db_url: str, conn: Connection):
    node.add("eater", "run", EATS_MEMORY, mem_limit="48m", memswap_limit="48m")
    node.add("flood", "run", FLOODS, {"accs.limits.output": "10m"})
    node.add("stubborn", "run", IGNORES_TERM, {"accs.timeout": "2s", "accs.stop-grace": "1s"})
    names = ("eater", "flood", "stubborn")
    with node.daemon(db_url):
        job = await submit(conn, *(step(name, name, max_attempts=1) for name in names), options=node.options())
        await job_reaches(conn, job, "error")
        await node.none_left()
    tasks = await tasks_of(conn, job)
    assert [tasks[name]["error_code"] for name in names] == ["oom", "output_limit", "timeout"]
    assert len(node.executions()) == 3
    kept = await log_lines(conn, node.folder / "state/objects", job, "flood")
    assert 9 * 1024 <= len(kept) <= 12 * 1024, "what it wrote before the limit is in its log"
    await check(conn)


async def test_one_wrong_service_does_not_keep_the_others_from_work(node: ComposeNode, db_url: str, conn: Connection):
    node.add("good", "run", PASS_ON)
    node.add("bad", "run", PASS_ON, {"accs.concurency": "2"})
    node.add("imageless", "run", PASS_ON, image="accsd-test-no-such-image")
    with node.daemon(db_url) as accsd:
        accsd.wait_for("node_registered")
        (problem,) = accsd.log("service_not_served")
        assert '"bad"' in problem["error"]
        assert "accs.concurency" in problem["error"]
        waiting = await submit(conn, step("x", "imageless"), options=node.options())
        job = await submit(conn, step("a", "good"), options=node.options())
        await job_reaches(conn, job, "done")

        accsd.wait_for("ended", code="image_missing", within=60)
        (task,) = (await tasks_of(conn, waiting)).values()
        assert (task["status"], task["attempt"], task["lost"]) == ("queued", 0, 1)
        said = accsd.wait_for("no_claims", service="imageless")
        assert said["reason"]

        # services come and go with the file, and a file that cannot be read changes nothing
        node.add("late", "exec", PASS_ON)
        accsd.signal(signal.SIGHUP)
        accsd.wait_for("node_registered", times=2)
        late = await submit(conn, step("b", "late"), options=node.options())
        await job_reaches(conn, late, "done")
        node.project.file.write_text("{")
        accsd.signal(signal.SIGHUP)
        accsd.wait_for("compose_unavailable")
        accsd.wait_for("node_registered", times=3)
        assert await conn.fetchval("SELECT max_concurrency FROM nodes") == {"good": 1, "imageless": 1, "late": 1}
        node.write()
        again = await submit(conn, step("c", "good"), options=node.options())
        await job_reaches(conn, again, "done")
    await check(conn)


def up_for(node: ComposeNode, db_url: str) -> subprocess.Popen[bytes]:
    environ = Cli(db_url).environment() | {"ACC_COMPOSE_PROJECT": node.project.name, "ACC_NODE_NAME": node.name}
    command = [*ACCSD, "up", "--compose", str(node.project.file), "--folder", str(node.folder / "state")]
    return subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


async def test_the_end_of_up_says_which_containers_stay_and_how_to_stop_them(
    node: ComposeNode, db_url: str, conn: Connection
):
    node.add("inside", "exec", PASS_ON)
    node.add("apart", "run", PASS_ON)
    with up_for(node, db_url) as up:
        try:
            job = await submit(conn, step("a", "inside"), step("b", "apart", after="a"), options=node.options())
            await job_reaches(conn, job, "done")
            up.send_signal(signal.SIGTERM)
            _, said = await asyncio.to_thread(up.communicate, timeout=60)
        finally:
            up.kill()
    assert up.returncode == 0
    stop = f"docker compose --project-name {node.project.name} -f {node.project.file} stop inside"
    assert said.decode().splitlines()[-1] == f"containers of inside stay up; to stop them: {stop}"
    assert node.of_service("inside")[0]["State"]["Running"]


def test_a_compose_file_that_is_not_there_is_told_at_once(tmp_path: Path, db_url: str):
    config = '[compose]\nfile = "nowhere/compose.yaml"\n'
    with daemon.running(tmp_path, db_url, config=config, ready=False) as accsd:
        assert accsd.process.wait(timeout=20) == 2
        said = accsd.log_file.read_text().splitlines()
    assert len(said) == 2, said
    assert said[0].startswith("accsd: the compose file ")
    assert said[0].endswith("nowhere/compose.yaml does not exist")


async def test_who_lost_the_lease_removes_its_work_and_leaves_the_others_alone(
    node: ComposeNode, tmp_path: Path, db_url: str, conn: Connection
):
    node.add("run", "run", WAIT)
    node.add("exec", "exec", WAIT)
    node.add_neighbours()
    lease = {"ACC_HEARTBEAT_TTL_SEC": "4"}
    elsewhere = {**lease, "ACC_STATE_DIR": str(tmp_path / "elsewhere")}
    with node.daemon(db_url, role="agent", environ=lease) as zombie:
        job = await submit(conn, step("run", "run"), step("exec", "exec"), options=node.options())
        await node.began("run", "exec")
        zombie.signal(signal.SIGSTOP)
        with node.daemon(db_url, node="second", environ=elsewhere):
            await node.began("run", "exec", attempt=2)
            tasks = await tasks_of(conn, job)
            zombie.signal(signal.SIGCONT)
            await eventually(lambda: not any(living(task["id"], 1) for task in tasks.values()), within=30)
            await node.none_left()
            assert len(node.ours("second")) == 1
            node.go.touch()
            await job_reaches(conn, job, "done")
            await node.none_left("second")
        assert zombie.stop() == 0
    for key, task in (await tasks_of(conn, job)).items():
        assert [began.attempt for began in node.executions(key)] == [1, 2]
        assert node.ended(key) == [2]
        assert (task["attempt_id"], task["attempt"], task["results"]["attempt"]) == (2, 0, 2)
    node.neighbours_are_untouched()
    await check(conn)
