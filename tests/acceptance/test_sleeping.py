"""Nodes that sleep and come back, as real processes. A machine's sleep is played by SIGSTOP, its waking by SIGCONT: the
daemon can't tell the difference, except that the clock goes on."""

import json
import os
import signal
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from accsd.proc import Process, look
from tests.support import daemon
from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.daemon import Daemon
from tests.support.eventually import eventually, eventually_sync
from tests.support.factory import clock, node, step, submit
from tests.support.fleet import is_done
from tests.support.tasks import NOTE, WAIT, notes, toml_service

LEASE = {"ACC_HEARTBEAT_TTL_SEC": "3"}
# Shorter than this nobody takes a stop for a sleep.
NAP = 2.5
STOP = "#!/bin/sh\nkill -STOP $PPID\n"
STOP_AND_GO_ON = f"#!/bin/sh\nkill -STOP $PPID; sleep {NAP}; kill -CONT $PPID\n"
SWITCH_OFF = "#!/bin/sh\nkill -TERM $PPID\n"


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def sleeping(folder: Path, way: str, program: str = NOTE, **rules: Any) -> str:
    """A node's configuration: it sleeps as soon as it may, by a script."""
    table = {
        "method": "script",
        "script": str(script(folder / "sleep.d" / "go", way)),
        "idle": "300ms",
        "awake": "300ms",
        "veto_files": [str(folder / "stay*")],
        # of the machine that runs the tests
        "veto_users": False,
        "veto_inhibitors": False,
        **rules,
    }
    lines = [f"{name} = {json.dumps(value)}" for name, value in table.items()]
    return "\n".join(["[sleep]", *lines, toml_service("render", program)])


@contextmanager
def agent(folder: Path, db_url: str, config: str, name: str = "n1", **environ: str) -> Generator[Daemon]:
    with daemon.running(
        folder, db_url, role="agent", node=name, config=config, environ={**LEASE, **environ}, ready=False
    ) as accsd:
        yield accsd


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def with_children(pid: int) -> Sequence[int]:
    """A process and all that descend from it, the youngest last."""
    children = [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]
    return [pid, *(each for child in children for each in with_children(child))]


def are_gone(processes: Sequence[Process]) -> bool:
    """These, and not others that were given their ids."""
    left = [now for each in processes if (now := look(each.pid)) and now.started == each.started]
    assert left == []
    return True


async def falls_asleep(conn: Connection, accsd: Daemon, name: str = "n1") -> None:
    await eventually(lambda: accsd.process.poll() is None and state_of(accsd.pid) == "T", within=20)
    row = await conn.fetchrow(
        "SELECT n.awake_state, p.state FROM nodes n JOIN accs.power p ON p.node = n.name WHERE n.name = $1", name
    )
    assert row is not None
    assert tuple(row) == ("sleep", "asleep")


async def because(conn: Connection, sentence: str, name: str = "n1") -> None:
    async def there() -> bool:
        assert await conn.fetchval("SELECT because FROM accs.power WHERE node = $1", name) == sentence
        return True

    await eventually(there, within=20)


async def test_a_machine_that_slept_past_its_lease_gives_up_what_another_has_done(
    tmp_path: Path, db_url: str, conn: Connection
):
    note, go = tmp_path / "notes", tmp_path / "go"
    config = toml_service("render", WAIT)
    with agent(tmp_path / "n1", db_url, config) as zombie:
        job = await submit(conn, step("a"), options={"note": str(note), "go": str(go)})
        await eventually(lambda: len(notes(note)) == 1, within=30)
        asleep = with_children(zombie.pid)
        assert len(asleep) > 1, "the task sleeps with its machine"
        work = [process for pid in asleep[1:] if (process := look(pid))]
        for pid in asleep:
            os.kill(pid, signal.SIGSTOP)
        with daemon.running(tmp_path / "n2", db_url, node="n2", config=config, environ=LEASE):
            await eventually(lambda: len(notes(note)) == 2, within=30)
            go.touch()
            await is_done(conn, job)
        for pid in reversed(asleep):
            os.kill(pid, signal.SIGCONT)
        await eventually(lambda: are_gone(work), within=60)
        await eventually(lambda: not list((tmp_path / "n1" / "state" / "n1" / "attempts").iterdir()), within=20)
        refusals = await eventually(
            lambda: conn.fetch("SELECT message, data FROM task_events WHERE type = 'refused'"), within=20
        )
        assert zombie.stop() == 0

    task = await conn.fetchrow("SELECT attempt_id, status, results FROM job_tasks WHERE job_id = $1", job)
    assert task is not None
    ran_by = [int(line[3]) for line in notes(note) if line[2] == "began"]
    assert (task["attempt_id"], task["status"], task["results"]) == (2, "done", {"pid": ran_by[1]})
    assert {(row["data"]["owner"], row["data"]["reason"]) for row in refusals} <= {
        ("n1", "stale_attempt"),
        ("n1", "already_finished"),
    }
    await check(conn)


async def test_an_idle_node_sleeps_and_does_what_waits_when_it_is_woken(tmp_path: Path, db_url: str, conn: Connection):
    note, stay = tmp_path / "notes", tmp_path / "stay-here"
    answer = script(tmp_path / "may-sleep.d" / "may-sleep", "#!/bin/sh\necho backup runs; exit 1\n")
    stay.touch()
    with agent(tmp_path, db_url, sleeping(tmp_path, STOP, veto_script=str(answer))) as accsd:
        await because(conn, f"{stay} is there")
        stay.unlink()
        await because(conn, "may-sleep says no: backup runs")
        script(answer, "#!/bin/sh\nexit 0\n")
        await falls_asleep(conn, accsd)
        slept_at = time.monotonic()
        job = await submit(conn, step("a"), options={"note": str(note)})
        (blocker,) = await conn.fetch("SELECT * FROM accs.why((SELECT id FROM job_tasks WHERE job_id = $1))", job)
        assert blocker["blocker"] == "node_asleep"
        await eventually(lambda: time.monotonic() - slept_at > NAP, within=10)
        accsd.signal(signal.SIGCONT)
        await is_done(conn, job)
        assert [
            row["state"] for row in await conn.fetch("SELECT state FROM accs.node_history ORDER BY id LIMIT 3")
        ] == [
            "ready",
            "asleep",
            "ready",
        ]
        await falls_asleep(conn, accsd)
    assert notes(note) == [["a", "1", "ran"]]
    assert await conn.fetchval("SELECT lost FROM job_tasks") == 0
    await check(conn)


async def test_a_node_with_a_lease_does_not_sleep(tmp_path: Path, db_url: str, conn: Connection):
    note, go = tmp_path / "notes", tmp_path / "go"
    with agent(tmp_path, db_url, sleeping(tmp_path, STOP, WAIT, idle="100ms", awake="100ms")) as accsd:
        job = await submit(conn, step("a"), options={"note": str(note), "go": str(go)})
        await eventually(lambda: len(notes(note)) == 1, within=30)
        # ten times the time after which it would sleep without work
        ends = time.monotonic() + 1
        await eventually(lambda: state_of(accsd.pid) == "T" or time.monotonic() > ends)
        assert state_of(accsd.pid) != "T"
        go.touch()
        await is_done(conn, job)
        await falls_asleep(conn, accsd)


async def test_of_two_idle_nodes_one_stays_for_a_job_that_is_near(tmp_path: Path, db_url: str, conn: Connection):
    for name in ("n1", "n2"):
        await node(conn, name, render=1)
    await conn.execute("UPDATE accs.power SET latency = '1 hour'")  # what is due before it could be back is near
    job = await submit(conn, step("a"), scheduled_at=await clock(conn) + timedelta(minutes=30))
    config = sleeping(tmp_path, STOP)
    with agent(tmp_path / "1", db_url, config) as first, agent(tmp_path / "2", db_url, config, "n2") as second:
        both = {"n1": first, "n2": second}
        sentence = f"render of job {job} is due soon, and nobody else who is awake can take it"

        async def settled() -> str | None:
            return await conn.fetchval("SELECT node FROM accs.power WHERE because = $1", sentence)

        stays = await eventually(settled, within=20)
        assert stays is not None
        (goes,) = both.keys() - {stays}
        await falls_asleep(conn, both[goes], goes)
        assert state_of(both[stays].pid) != "T"


async def test_a_machine_that_is_switched_off_to_sleep_says_no_other_word(
    tmp_path: Path, db_url: str, conn: Connection
):
    with agent(tmp_path, db_url, sleeping(tmp_path, SWITCH_OFF)) as accsd:
        assert accsd.process.wait(timeout=20) == 0
    assert await conn.fetchval("SELECT awake_state FROM nodes") == "sleep"


async def test_killed_while_it_sleeps_the_next_daemon_is_at_work(tmp_path: Path, db_url: str, conn: Connection):
    config = sleeping(tmp_path, STOP_AND_GO_ON)
    for point in ("sleep.said", "sleep.resumed"):
        with agent(tmp_path, db_url, config, ACC_FAILPOINTS=f"{point}:kill") as accsd:
            eventually_sync(lambda: accsd.process.poll() == -signal.SIGKILL, within=20, what=point)
    (tmp_path / "stay").touch()
    with agent(tmp_path, db_url, config):
        job = await submit(conn, step("a"), options={"note": str(tmp_path / "notes")})
        await is_done(conn, job)
        assert await conn.fetchval("SELECT awake_state FROM nodes") == "awake"
    await check(conn)
