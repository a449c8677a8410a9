"""The daemon as people run it: real processes, one database, commands on this machine."""

import signal
from pathlib import Path

from tests.support import daemon
from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.eventually import eventually
from tests.support.factory import chain, step, submit, task
from tests.support.fleet import reaches
from tests.support.objectstore import log_lines
from tests.support.tasks import NOTE, WAIT, notes, toml_service

SHORT_LEASE = {"ACC_HEARTBEAT_TTL_SEC": "4"}
RELOADED = """
backoff_base_sec = 7
[wake]
boot = "1m"
[retention]
jobs = "9d"
[outbox.targets.studio]
url = "https://studio.example.invalid/"
secret = "a-secret-of-the-studio"
"""


async def began(path: Path, count: int = 1) -> None:
    await eventually(lambda: len([note for note in notes(path) if note[2] == "began"]) >= count, within=30)


def is_there(path: Path) -> bool:
    return path.exists()


async def test_a_workflow_runs_to_done(tmp_path: Path, db_url: str, conn: Connection):
    note = tmp_path / "notes"
    with daemon.running(tmp_path, db_url, config=toml_service("render", NOTE, concurrency=2)) as accsd:
        job = await submit(conn, *chain("a", "b", "c"), options={"note": str(note)})
        await reaches(conn, job, "done")
        assert accsd.stop() == 0
    assert notes(note) == [["a", "1", "ran"], ["b", "1", "ran"], ["c", "1", "ran"]]
    assert (await task(conn, job, "c"))["results"] == {"key": "c"}
    await check(conn)


async def test_a_plain_insert_is_a_submission(tmp_path: Path, db_url: str, conn: Connection):
    note = tmp_path / "notes"
    with daemon.running(tmp_path, db_url, config=toml_service("render", NOTE)):
        workflow = await conn.fetchval(
            "INSERT INTO workflows (name, steps) VALUES ('w', $1) RETURNING id", [step("a"), step("b", after="a")]
        )
        job = await conn.fetchval(
            "INSERT INTO jobs (workflow_id, options) VALUES ($1, $2) RETURNING id", workflow, {"note": str(note)}
        )
        await reaches(conn, job, "done")


async def test_after_kill_9_the_next_daemon_adopts_what_runs_and_no_line_is_missing(
    tmp_path: Path, db_url: str, conn: Connection
):
    note, go = tmp_path / "notes", tmp_path / "go"
    config = toml_service("render", WAIT)
    with daemon.running(tmp_path, db_url, config=config) as accsd:
        job = await submit(
            conn, step("a"), step("b", after="a"), options={"note": str(note), "go": str(go), "lines": 500}
        )
        await began(note)
        accsd.kill()
    with daemon.running(tmp_path, db_url, config=config) as accsd:
        accsd.wait_for("adopted")
        go.touch()
        await reaches(conn, job, "done")
        assert accsd.stop() == 0
    pid = notes(note)[0][3]
    assert notes(note)[:2] == [["a", "1", "began", pid], ["a", "1", "ended"]], "the same process went on"
    assert (await task(conn, job))["results"] == {"pid": int(pid)}
    assert await log_lines(conn, tmp_path / "state" / "objects", job, "a") == [f"line {i}" for i in range(1000)]
    await check(conn)


async def test_what_ended_while_no_daemon_ran_is_finished_by_the_next_one(
    tmp_path: Path, db_url: str, conn: Connection
):
    note, go = tmp_path / "notes", tmp_path / "go"
    config = toml_service("render", WAIT)
    with daemon.running(tmp_path, db_url, config=config) as accsd:
        job = await submit(conn, step("a"), options={"note": str(note), "go": str(go), "lines": 10})
        await began(note)
        accsd.kill()
    go.touch()
    await eventually(lambda: len(notes(note)) == 2, within=20)
    with daemon.running(tmp_path, db_url, config=config):
        await reaches(conn, job, "done")
    assert (await task(conn, job))["attempt_id"] == 1
    assert len(await log_lines(conn, tmp_path / "state" / "objects", job, "a")) == 20


async def test_sigterm_lets_a_task_end_within_the_grace(tmp_path: Path, db_url: str, conn: Connection):
    note, go = tmp_path / "notes", tmp_path / "go"
    with daemon.running(tmp_path, db_url, config=toml_service("render", WAIT)) as accsd:
        job = await submit(conn, step("a"), step("b"), options={"note": str(note), "go": str(go)})
        await began(note)
        accsd.signal(signal.SIGTERM)
        accsd.wait_for("draining")
        go.touch()
        assert accsd.process.wait(timeout=20) == 0
    done, waiting = await task(conn, job, "a"), await task(conn, job, "b")
    assert (done["status"], waiting["status"]) == ("done", "queued"), "nothing new is claimed while draining"
    assert await conn.fetchval("SELECT awake_state FROM nodes") == "unknown"


async def test_after_the_grace_a_task_is_given_back_and_no_attempt_is_spent(
    tmp_path: Path, db_url: str, conn: Connection
):
    note = tmp_path / "notes"
    with daemon.running(
        tmp_path, db_url, config=toml_service("render", WAIT, stop_grace="2s"), environ={"ACC_DRAIN_SEC": "0.2"}
    ) as accsd:
        job = await submit(conn, step("a"), options={"note": str(note), "go": str(tmp_path / "never")})
        await began(note)
        process = Path(f"/proc/{notes(note)[0][3]}")
        assert accsd.stop(within=20) == 0
    given_back = await task(conn, job)
    assert (given_back["status"], given_back["attempt"], given_back["lost"]) == ("queued", 0, 0)
    assert not is_there(process)
    assert not list((tmp_path / "state" / "n1" / "attempts").iterdir())
    await check(conn)


async def test_a_second_sigterm_does_not_wait(tmp_path: Path, db_url: str, conn: Connection):
    note = tmp_path / "notes"
    with daemon.running(
        tmp_path, db_url, config=toml_service("render", WAIT, stop_grace="1h"), environ={"ACC_DRAIN_SEC": "3600"}
    ) as accsd:
        job = await submit(conn, step("a"), options={"note": str(note), "go": str(tmp_path / "never")})
        await began(note)
        accsd.signal(signal.SIGTERM)
        accsd.wait_for("draining")
        accsd.signal(signal.SIGTERM)
        assert accsd.process.wait(timeout=15) == 0
    assert (await task(conn, job))["status"] == "queued"


async def test_cancel_stops_the_process_at_once(tmp_path: Path, db_url: str, conn: Connection):
    note = tmp_path / "notes"
    with daemon.running(tmp_path, db_url, config=toml_service("render", WAIT)):
        job = await submit(conn, step("a"), options={"note": str(note), "go": str(tmp_path / "never")})
        await began(note)
        process = Path(f"/proc/{notes(note)[0][3]}")
        await conn.fetch("SELECT * FROM accs.cancel_jobs($1)", [job])
        await eventually(lambda: not is_there(process), within=5)
    assert (await task(conn, job))["status"] == "cancelled"
    await check(conn)


async def test_a_command_finds_the_sdk_although_the_daemon_was_started_as_by_its_unit(
    tmp_path: Path, db_url: str, conn: Connection
):
    """From an environment of its own, that no PATH names: as docs/writing-a-service.md has it."""
    (tmp_path / "shouter.py").write_text(
        "from accsd.sdk import Service, Task\nservice = Service('shouter')\n"
        "@service.task\ndef shout(task: Task) -> dict: return {'loud': True}\nservice.main()\n"
    )
    config = '[services.shouter]\nrunner = "process"\ncommand = ["python3", "shouter.py"]\n'
    with daemon.running(tmp_path, db_url, config=config, environ={"PATH": "/usr/bin:/bin"}):
        job = await submit(conn, step("a", "shouter", max_attempts=1))
        await reaches(conn, job, "done")
    assert (await task(conn, job))["results"] == {"loud": True}


async def test_sighup_reads_the_services_again(tmp_path: Path, db_url: str, conn: Connection):
    note = tmp_path / "notes"
    with daemon.running(tmp_path, db_url, config=toml_service("render", NOTE), http=True) as accsd:
        accsd.wait_for("node_registered")
        accsd.config.write_text(toml_service("audio", NOTE, concurrency=3))
        accsd.signal(signal.SIGHUP)
        accsd.wait_for("node_registered", times=2)
        assert await conn.fetchval("SELECT max_concurrency FROM nodes") == {"audio": 3}
        assert accsd.log("needs_a_restart") == []
        job = await submit(conn, step("a", "audio"), options={"note": str(note)})
        await reaches(conn, job, "done")
        accsd.config.write_text(RELOADED + toml_service("audio", NOTE, concurrency=3))
        accsd.signal(signal.SIGHUP)
        assert accsd.wait_for("needs_a_restart")["settings"] == ["backoff_base_sec"]
        accsd.wait_for("outbox_target_registered", target="studio")
        await eventually(lambda: {"archive", "outbox-studio"} <= accsd.health()["roles"].keys(), within=10)
        accsd.config.write_text("nonsense = ")
        accsd.signal(signal.SIGHUP)
        accsd.wait_for("reload_failed")
        again = await submit(conn, step("a", "audio"), options={"note": str(note)})
        await reaches(conn, again, "done")
