"""From a client's submission to its verdict: the door, real daemons and the judge of examples/judge, as a process and
in containers; and what a crash in the middle leaves."""

import os
import shutil
import signal
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from uuid import UUID

import pytest

from tests.support import daemon
from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.compose import why_not
from tests.support.compose_node import living
from tests.support.daemon import Daemon
from tests.support.eventually import eventually
from tests.support.judge_programs import (
    EXAMPLE,
    HOSTILE,
    SUM_PY,
    TESTS,
    VERDICTS,
    Submitted,
    processes_of,
    programs_of,
    why_no_judge,
)
from tests.support.judging import Door, judging

IMAGE = "accsd-test-judge"
SHORT_LEASE = {"ACC_HEARTBEAT_TTL_SEC": "4"}
ONE_OF_EACH = {
    name: VERDICTS[name]
    for name in ("accepted_cpp", "wrong", "does_not_compile", "computes_for_ever", "eats_memory", "floods", "crashes")
}


def copied(folder: Path) -> Path:
    return shutil.copytree(EXAMPLE, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))


def as_a_process(folder: Path) -> str:
    """The settings of a node that judges; its services lie beside them."""
    if reason := why_no_judge():
        pytest.skip(reason)
    return "[services.judge]" + (copied(folder) / "accsd.toml").read_text().partition("[services.judge]")[2]


async def nothing_is_left(conn: Connection) -> None:
    """No process of a judge or of a program, and a history that agrees with itself."""
    for row in await conn.fetch("SELECT id::text FROM job_tasks"):
        await eventually(lambda task=row["id"]: not processes_of(task), within=30, what="an end of its processes")
    await check(conn)


async def verdict(door: Door, job: str) -> str:
    told = await door.status(job, headers={"Prefer": "wait=120"}, timeout=130)
    assert told["status"] == "Finished", told
    return told["data"]["status"]


async def every_verdict(door: Door, programs: Mapping[str, Submitted]) -> None:
    """All of them at once; each ends with its own."""
    problem = await door.problem(TESTS, time_limit=1500, memory_limit=128)
    jobs = {
        name: await door.submitted(problem, each.code, language=each.language, time_limit=each.ms)
        for name, each in programs.items()
    }
    found = {name: await verdict(door, job) for name, job in jobs.items()}
    assert found == {name: each.status for name, each in programs.items()}


async def test_clients_get_verdicts_of_a_judge_that_is_a_process(tmp_path: Path, db_url: str, conn: Connection):
    """One of each verdict, through the door. System Error comes from a language that the judge does not know."""
    config = as_a_process(tmp_path)
    languages = {"cpp": 1, "python": 3, "cobol": 9}
    async with judging(db_url, tmp_path / "state" / "objects", languages=languages) as door:
        with daemon.running(tmp_path, db_url, config=config) as accsd:
            await every_verdict(door, ONE_OF_EACH)
            job = await door.submitted(await door.problem(TESTS), "x", language="cobol")
            assert await verdict(door, job) == "System Error"
            shown = (await door.status(job))["data"]
            assert (shown["error_code"], "knows no cobol" in shown["error_message"]) == ("sandbox_error", True)
            assert shown["attempt_id"] == 3, "it was tried again, and not for ever"
            assert accsd.stop() == 0
    await nothing_is_left(conn)


@pytest.mark.parametrize("how", ["killed", "stopped"])
async def test_a_judge_that_is_lost_in_the_middle_is_followed_by_another_attempt_and_writes_nothing(
    tmp_path: Path, db_url: str, conn: Connection, how: str
):
    """3.5, the crash recipe (D3 to D5): attempt 1 is lost with its node, or sleeps through its lease; attempt 2 judges.
    What attempt 1 says later is refused and touches nothing."""
    config = as_a_process(tmp_path)
    slow = "import time\ntime.sleep(4)\n" + SUM_PY
    async with judging(db_url, tmp_path / "state" / "objects") as door:
        with _role("builder", "control", tmp_path, db_url), _role("agent", "n1", tmp_path, db_url, config) as first:
            problem = await door.problem({"1.in": "1 2", "1.out": "3"}, time_limit=10_000)
            job = await door.submitted(problem, slow, language=3)
            task = await _is_judged(door, conn, job)
            owner = await conn.fetchval("SELECT lease_owner FROM job_tasks WHERE id = $1", task)
            _lose(first, task, how)
            with _role("agent", "n2", tmp_path, db_url, config):
                assert await verdict(door, job) == "Accepted"
                told = await conn.fetchrow("SELECT * FROM submissions WHERE job_id = $1::uuid", job)
                assert told is not None
                assert (told["status"], told["state"], told["attempt_id"]) == ("Accepted", "done", 2)
                if how == "stopped":
                    first.signal(signal.SIGCONT)
                    await eventually(lambda: not living(task, 1), within=30, what="an end of attempt 1")
                await _is_refused(conn, task, owner)
                assert await conn.fetchrow("SELECT * FROM submissions WHERE job_id = $1::uuid", job) == told
    await nothing_is_left(conn)


def _role(role: str, node: str, folder: Path, db_url: str, config: str = "") -> AbstractContextManager[Daemon]:
    return daemon.running(folder, db_url, role=role, node=node, config=config, environ=SHORT_LEASE)


async def _is_judged(door: Door, conn: Connection, job: str) -> UUID:
    """Once its program runs: the task."""

    async def runs() -> bool:
        return (await door.status(job))["state"] == "processing" and bool(programs_of(str(task)))

    task: UUID = await conn.fetchval("SELECT id FROM job_tasks WHERE job_id = $1::uuid", job)
    await eventually(runs, within=30)
    return task


def _lose(first: Daemon, task: UUID, how: str) -> None:
    if how == "stopped":
        first.signal(signal.SIGSTOP)
        return
    first.kill()
    for pid in living(task, 1):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


async def _is_refused(conn: Connection, task: UUID, owner: str) -> None:
    """The verdict of the old attempt, said once more as its owner would."""
    stale = {"verdict": "OK", "status": "Wrong Answer"}
    answer = await conn.fetchrow(
        "SELECT * FROM accs.finish_tasks(ARRAY[$1::uuid], ARRAY[1], $2, p_results => $3)", task, owner, [stale]
    )
    assert answer is not None
    assert (answer["answer"], answer["reason"]) == ("refused", "stale_attempt")


@pytest.fixture
def project() -> Iterator[dict[str, str]]:
    """The variables of compose.yaml; what it makes is removed."""
    if reason := why_not():
        pytest.skip(reason)
    inspected = subprocess.run(["docker", "image", "inspect", IMAGE], capture_output=True, timeout=30, check=False)
    if inspected.returncode != 0:
        pytest.skip(f"no image {IMAGE} (tools/make_test_images.sh makes it where g++ is)")
    name = f"accsd-test-{uuid.uuid4().hex[:10]}"
    yield {"COMPOSE_PROJECT_NAME": name, "BASE": IMAGE, "IMAGE": f"{IMAGE}-built"}
    if left := containers_of(name):
        subprocess.run(["docker", "rm", "-f", "-v", *left], capture_output=True, check=True, timeout=60)


def build(file: Path, project: dict[str, str]) -> None:
    command, environ = ["docker", "compose", "-f", file, "build"], {**os.environ, **project}
    built = subprocess.run(command, env=environ, capture_output=True, timeout=200, check=False)
    assert built.returncode == 0, built.stderr.decode()


def containers_of(project: str) -> list[str]:
    listed = ["docker", "ps", "-aq", "--filter", f"label=com.docker.compose.project={project}"]
    return subprocess.run(listed, capture_output=True, check=True, timeout=30).stdout.decode().split()


@pytest.mark.needs_docker
@pytest.mark.xdist_group("compose")
async def test_clients_get_verdicts_of_a_judge_in_containers_and_hostile_programs_leave_nothing(
    tmp_path: Path, db_url: str, conn: Connection, project: dict[str, str]
):
    """The compose service of examples/judge, built here: no network, its limits, a container for each submission."""
    file = copied(tmp_path) / "compose.yaml"
    build(file, project)
    name = project["COMPOSE_PROJECT_NAME"]
    config = f'[compose]\nfile = "{file}"\nproject = "{name}"\n'
    async with judging(db_url, tmp_path / "state" / "objects") as door:
        with daemon.running(tmp_path, db_url, node=f"node-{name}", config=config, environ=project) as accsd:
            await every_verdict(door, {**ONE_OF_EACH, **HOSTILE})
            assert accsd.log("service_not_served") == []
            await eventually(lambda: not containers_of(name), within=30, interval=0.2, what="an end of containers")
            assert accsd.stop() == 0
    await nothing_is_left(conn)
