"""`accsd logs` and `accsd artifacts`, of tasks that a real daemon runs."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

from accsd.cli.output import harmless, text
from accsd.explain.words import short
from tests.support import daemon, tasks
from tests.support.cli import ACCSD, Cli, Said
from tests.support.cluster import SERVER_NAMES, Clusters, Connection, TestServer
from tests.support.eventually import eventually, eventually_sync
from tests.support.factory import job, step, submit

MANY = (
    tasks.PREAMBLE
    + """
for i in range(1500): print(f'line {i}', flush=i % 100 == 99)
until('go')
print('the last one')
"""
)
FAILS_ONCE = (
    tasks.PREAMBLE
    + """
print('attempt', task['attempt_id'], flush=True)
sys.exit(task['attempt_id'] == 1)
"""
)
FILES = (
    tasks.PREAMBLE
    + """
os.makedirs('frames')
open('frames/1.txt', 'w').write('one')
open('out.txt', 'w').write('all of it')
say(type='artifact', path='frames/1.txt')
say(type='artifact', path='out.txt', content_type='text/plain')
print('\\x1b[31mred\\x1b[0m and \\x07 a bell')
"""
)


@pytest.fixture
def server(clusters: Clusters) -> TestServer:
    return clusters.get(SERVER_NAMES[0])


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The commands run on the machine of the node: they find the objects that it keeps by default."""
    path = tmp_path / "cli.toml"
    path.write_text(f'[node]\nstate_dir = "{tmp_path / "state"}"\n')
    return path


@pytest.fixture
def cli(db_url: str, config: Path) -> Callable[..., object]:
    run = Cli(db_url)

    async def asked(*arguments: str) -> Said:
        return await run("--config", str(config), *arguments)

    return asked


async def ended(conn: Connection, job_id: UUID) -> str:
    async def status() -> str:
        found = (await job(conn, job_id))["status"]
        return "" if found in ("queued", "running") else found

    return await eventually(status, within=60)


def following(config: Path, db_url: str, out: Path, *arguments: str) -> subprocess.Popen[bytes]:
    with out.open("wb") as file:
        return subprocess.Popen(
            [*ACCSD, "--config", str(config), "logs", "-f", *arguments],
            env=Cli(db_url).environment(),
            stdout=file,
            stderr=subprocess.STDOUT,
        )


async def test_following_shows_each_line_once_as_it_comes_and_ends_with_the_job(
    cli, config: Path, db_url: str, conn: Connection, tmp_path: Path
):
    go, out = tmp_path / "go", tmp_path / "followed"
    service = tasks.toml_service("render", tasks.WAIT)
    params = {"lines": 3, "go": str(go), "note": str(tmp_path / "notes")}
    with daemon.running(tmp_path, db_url, config=service):
        job_id = await submit(conn, step("a", default_params=params), step("b", after="a", default_params=params))
        follower = following(config, db_url, out, short(job_id))
        try:
            eventually_sync(lambda: "a | line 2" in out.read_text(), within=30)
            assert follower.poll() is None
            (await cli("logs", short(job_id))).ends(0, "a | line 2")  # by its events: nothing has been kept yet
            go.touch()
            assert await ended(conn, job_id) == "done"
            assert follower.wait(timeout=30) == 0
        finally:
            follower.kill()
    lines = [f"{key} | line {n}" for key in "ab" for n in range(6)]
    assert out.read_text().splitlines() == lines
    whole = (await cli("logs", short(job_id))).ends(0)
    assert whole.out.splitlines() == lines  # from the store
    assert (await cli("logs", "-f", short(job_id))).ends(0).out == whole.out  # and not by its events once more
    records = (await cli("logs", short(job_id), "--task", "b", "-o", "jsonl")).json_lines
    assert [record["message"] for record in records] == [f"line {n}" for n in range(6)]
    assert {(record["task"], record["attempt"], record["stream"], record["level"]) for record in records} == {
        ("b", 1, "stdout", "info")
    }


async def test_one_who_writes_more_than_events_hold_is_followed_through_the_store(
    cli, config: Path, db_url: str, conn: Connection, tmp_path: Path
):
    go, out = tmp_path / "go", tmp_path / "followed"
    with daemon.running(tmp_path, db_url, config=tasks.toml_service("render", MANY)):
        job_id = await submit(conn, step("a", default_params={"go": str(go)}))
        follower = following(config, db_url, out, short(job_id), "--task", "a")
        try:
            eventually_sync(lambda: "line 1499\n" in out.read_text(), within=60)
            snapshot = (await cli("logs", short(job_id), "--task", "a")).ends(0)
            assert snapshot.out.splitlines() == [f"line {n}" for n in range(1500)]
            go.touch()
            assert follower.wait(timeout=30) == 0
        finally:
            follower.kill()
    assert out.read_text().splitlines() == [*(f"line {n}" for n in range(1500)), "the last one"]


async def test_an_earlier_attempt_and_what_is_not_there(cli, db_url: str, conn: Connection, tmp_path: Path):
    with daemon.running(tmp_path, db_url, config=tasks.toml_service("render", FAILS_ONCE)):
        job_id = await submit(conn, step("a", backoff=[0]), step("z", "nobody"))
        name = short(job_id)

        async def second_attempt_has_ended() -> bool:
            return await conn.fetchval("SELECT status = 'done' FROM job_tasks WHERE task_key = 'a'")

        await eventually(second_attempt_has_ended, within=60)
    assert (await cli("logs", name)).out == "a | attempt 2\n"
    assert (await cli("logs", name, "--task", "a", "--attempt", "1")).out == "attempt 1\n"
    (await cli("logs", name, "--task", "z")).ends(0, "nothing was written", f"`accsd why {name}`")
    (await cli("logs", name, "--task", "aa")).ends(3, 'no step "aa"', f"→ `accsd job {name}`")
    await conn.execute(
        """INSERT INTO task_events (job_id, job_task_id, source, type, level, message, attempt_id)
           SELECT job_id, id, 'service:render', 'truncated', 'warn', 'the last part is missing', 2
             FROM job_tasks WHERE task_key = 'a'"""
    )
    (await cli("logs", name)).ends(0, "accsd: the log is not whole: a, attempt 2: the last part is missing")
    assert (await cli("logs", name, "--attempt", "1")).err == ""
    (await cli("logs", name, "--attempt", "7")).ends(3, f"job {name} has no attempt 7; there are: a 1 to 2\n")
    (await cli("logs", name, "--task", "a", "--attempt", "3")).ends(
        3, 'no attempt 3 of step "a"; there are: a 1 to 2\n'
    )
    (await cli("logs", name, "--task", "z", "--attempt", "1")).ends(3, "there are: none yet", f"→ `accsd job {name}`")
    (await cli("logs", "ffff")).ends(3, "→ `accsd jobs`")
    (tmp_path / "state" / "objects").rename(tmp_path / "gone")
    lost = (await cli("logs", name)).ends(0, "the log is not whole", "configure storage.url")
    assert lost.out == "a | attempt 2\n"  # its first lines are events


async def test_artifacts_are_listed_downloaded_whole_and_never_outside_the_folder(
    cli, db_url: str, conn: Connection, tmp_path: Path
):
    with daemon.running(tmp_path, db_url, config=tasks.toml_service("render", FILES)):
        job_id = await submit(conn, step("a"))
        assert await ended(conn, job_id) == "done"
    name, to = short(job_id), tmp_path / "results"
    listed = (await cli("artifacts", name, "-o", "json")).ends(0).json
    found = {row["name"]: row for row in listed}
    assert set(found) == {"frames/1.txt", "out.txt"}
    assert (found["out.txt"]["size_bytes"], found["out.txt"]["content_type"], found["out.txt"]["task"]) == (
        9,
        "text/plain",
        "a",
    )
    assert "000001.jsonl" in (await cli("artifacts", name, "--logs")).ends(0).out
    (await cli("artifacts", name, "get", "--to", str(to))).ends(0, str(to / "a" / "out.txt"))
    assert (to / "a" / "frames" / "1.txt").read_text() == "one"
    (await cli("artifacts", name, "get", "out.txt", "--to", str(to))).ends(2, "exists already", "--force")
    (await cli("artifacts", name, "get", "a/out.txt", "--to", str(to), "--force")).ends(0)
    (await cli("artifacts", name, "get", "other", "--to", str(to))).ends(3, 'no artifact "other"')
    assert (await cli("logs", name)).out == "a | red and \\x07 a bell\n"

    # a link that leads out, a name that leads up, bytes that are not those that were stored
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "a").symlink_to(outside)
    (await cli("artifacts", name, "get", "out.txt", "--to", str(tmp_path / "linked"))).ends(2, "leads out of")
    await conn.execute(
        "INSERT INTO task_artifacts (job_id, kind, bucket, key) VALUES ($1, 'output', 'accs', '../../evil')", job_id
    )
    (await cli("artifacts", name, "get", "../../evil", "--to", str(to / "deep"))).ends(2, "is not an object key")
    await conn.execute("UPDATE task_artifacts SET checksum = 'sha256:00' WHERE key LIKE '%out.txt'")
    (await cli("artifacts", name, "get", "out.txt", "--to", str(to / "fresh"))).ends(4)
    assert os.listdir(outside) == []
    assert not (to / "fresh" / "a" / "out.txt").exists()


def test_a_terminal_is_not_obeyed_to():
    assert harmless("a\x1b]0;title\x07b\x1b[2Jc\rd\te\u202e") == "abc\\x0dd\te\\x202e"
    assert text("why it is awake:\x1b[2J\nsomebody\r") == "why it is awake:\nsomebody\\x0d", "nor by a table"
