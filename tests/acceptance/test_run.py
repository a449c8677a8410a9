"""`accsd run -- CMD`: the real command as a process, with the job that it leaves."""

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from accsd.explain.words import short
from tests.support.checker import check
from tests.support.cli import ACCSD, Cli
from tests.support.cluster import Connection
from tests.support.eventually import eventually

WAITS = "echo began; echo $$ >> {pids}; exec sleep 100"


@pytest.fixture
async def cli(tmp_path: Path, db_url: str, conn: Connection) -> AsyncIterator[Cli]:
    yield Cli(db_url, tmp_path, ACC_STATE_DIR=str(tmp_path / "state"), ACC_NODE_NAME="m1", ACC_HEARTBEAT_TTL_SEC="5")
    await check(conn)


async def the_job(conn: Connection) -> dict[str, Any]:
    """The newest one, with its task."""
    row = await conn.fetchrow(
        """SELECT j.*, t.id AS task_id, t.status AS task_status, t.results, t.lease_owner, w.name AS workflow
             FROM jobs j JOIN job_tasks t ON t.job_id = j.id JOIN workflows w ON w.id = j.workflow_id
            ORDER BY j.order_seq DESC LIMIT 1"""
    )
    assert row is not None
    return dict(row)


async def begun(cli: Cli, pids: Path, *, count: int = 1) -> subprocess.Popen[str]:
    """One that runs until it is stopped; it has begun as the so-many-th."""
    child = cli.spawn("run", "--", "sh", "-c", WAITS.format(pids=pids))
    await eventually(lambda: pids.exists() and len(pids.read_text().split()) == count, within=30)
    return child


def living(pids: Path) -> list[str]:
    return [pid for pid in pids.read_text().split() if Path(f"/proc/{pid}").exists()]


def ended(child: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = child.communicate(timeout=30)
    return child.returncode, out, err


async def test_a_command_leaves_a_job_with_its_log_and_its_exit_code(cli: Cli, tmp_path: Path, conn: Connection):
    script = 'pwd; cat; echo "$COLOUR of $1" >&2; exit ${2-0}'
    command = ("sh", "-c", script, "sh", "a secret word")
    os.environ["COLOUR"] = "blue"
    try:
        said = await cli.process("run", "--name", "paint", "--label", "wall=7", "--", *command, stdin="from stdin\n")
    finally:
        del os.environ["COLOUR"]
    said.ends(0)
    job = await the_job(conn)
    assert said.out == f"{tmp_path}\nfrom stdin\n"
    assert said.err == f"accsd: job {short(job['id'])}\nblue of a secret word\n"
    assert (job["status"], job["results"], job["options"]) == ("done", {"exit_code": 0}, {"wall": 7, "name": "paint"})
    first, *others = (await cli("logs", str(job["id"]))).ends(0).out.splitlines()
    assert first == f"run | {tmp_path}"
    assert sorted(others) == ["run | blue of a secret word", "run | from stdin"], "two pipes, read as they come"
    for table in ("jobs", "job_tasks", "workflows", "nodes"):
        assert not await conn.fetchval(f"SELECT bool_or({table}::text LIKE '%secret word%') FROM {table}")

    (await cli.process("run", "--", *command, "3")).ends(3, "secret word")
    job = await the_job(conn)
    assert (job["status"], job["error_code"], job["options"]) == ("error", "exit_nonzero", {"name": "sh"})
    assert "exit code 3: " in job["error_message"]
    assert await conn.fetchval("SELECT count(*) FROM dead_letters WHERE dismissed_at IS NULL") == 0
    (await cli("retry", str(job["id"]))).ends(1, "in the memory of an `accsd run`")
    assert await conn.fetchval("SELECT count(*) FROM workflows") == 1, "one for each node of this kind"
    assert (await cli("nodes", "-o", "name")).out == ""
    assert (await cli("nodes", "--all", "-o", "name")).out.split() == ["m1.accs.run"]


async def test_what_cannot_be_executed_ends_as_in_a_shell(cli: Cli, conn: Connection, tmp_path: Path):
    (await cli.process("run", "--", "no-such-command")).ends(127, "no-such-command: No such file")
    assert (await the_job(conn))["status"] == "error"
    (tmp_path / "plain").touch()
    (await cli.process("run", "--", "./plain")).ends(126, "Permission denied")
    (await cli.process("run")).ends(2)


async def test_ctrl_c_cancels_the_job_and_stops_the_command(cli: Cli, conn: Connection, tmp_path: Path):
    child = await begun(cli, tmp_path / "pids")
    child.send_signal(signal.SIGINT)
    code, out, err = await asyncio.to_thread(ended, child)
    assert (code, out) == (130, "began\n")
    assert "Traceback" not in err
    assert living(tmp_path / "pids") == []
    job = await the_job(conn)
    assert (job["status"], job["error_message"]) == ("cancelled", "interrupted")


async def test_it_can_be_cancelled_from_elsewhere(cli: Cli, conn: Connection, tmp_path: Path):
    child = await begun(cli, tmp_path / "pids")
    (await cli("cancel", str((await the_job(conn))["id"]))).ends(0)
    code, _, err = await asyncio.to_thread(ended, child)
    assert code == 1
    assert "was cancelled, and the command was stopped" in err
    assert living(tmp_path / "pids") == []


async def test_two_at_once_do_not_meet_and_take_nothing_else(cli: Cli, conn: Connection, tmp_path: Path):
    first = await begun(cli, tmp_path / "pids")
    other = await the_job(conn)
    foreign = await conn.fetchval("SELECT accs.submit($1)", other["workflow"])  # of its workflow, and with no command
    (await cli.process("run", "--", "echo", "second")).ends(0, "second")
    second = await conn.fetchrow("SELECT owners FROM (SELECT array_agg(data ->> 'owner') AS owners FROM task_events"
        " WHERE data ->> 'to' = 'starting') all_claims")  # fmt: skip
    assert second is not None
    assert sorted(second["owners"]) == ["m1.accs.run", "m1.accs.run.2"]
    first.send_signal(signal.SIGTERM)
    assert (await asyncio.to_thread(ended, first))[0] == 130
    (await cli.process("run", "--", "echo", "third")).ends(0)
    assert await conn.fetchval("SELECT status FROM jobs WHERE id = $1", foreign) == "error"
    said = await conn.fetchval("SELECT error_message FROM job_tasks WHERE job_id = $1", foreign)
    assert "in the memory of an `accsd run` that is gone" in said


async def test_a_killed_one_takes_its_command_along_and_nobody_runs_it_again(
    cli: Cli, conn: Connection, tmp_path: Path
):
    child = await begun(cli, tmp_path / "pids")
    job = await the_job(conn)
    child.kill()
    await asyncio.to_thread(ended, child)
    await eventually(lambda: living(tmp_path / "pids") == [], within=5)

    async def reclaimed() -> bool:
        await conn.fetch("SELECT * FROM accs.reclaim_tasks()")
        return not await conn.fetchval("SELECT count(*) FROM accs.live")

    await eventually(reclaimed, within=20, interval=0.2)
    row = await conn.fetchrow("SELECT status, error_code FROM jobs WHERE id = $1", job["id"])
    assert row == ("error", "worker_lost"), "nobody else could carry it out, so nobody waits for that"
    (await cli.process("run", "--", "true")).ends(0)
    assert len((tmp_path / "pids").read_text().split()) == 1, "it ran once"


async def test_an_output_that_nobody_reads_any_more_ends_the_command(cli: Cli, conn: Connection, tmp_path: Path):
    script = f'{" ".join(ACCSD)} run -- yes | head -1; echo "${{PIPESTATUS[0]}}"'
    ran = await asyncio.to_thread(
        subprocess.run, ["bash", "-c", script], env=cli.environment(), capture_output=True, text=True, timeout=60
    )
    assert ran.stdout.split() == ["y", "141"]
    assert "Traceback" not in ran.stderr
    assert (await the_job(conn))["error_message"].endswith("nobody reads its output any more")
