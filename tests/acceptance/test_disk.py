"""A disk that is nearly full takes no work, and one that fills up is the node's fault, not the task's."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from tests.support import daemon
from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.daemon import Daemon
from tests.support.eventually import eventually
from tests.support.factory import step, submit
from tests.support.tasks import NOTE, PREAMBLE, notes, outcome, toml_service

# The first attempt fills the disk and fails for it; the next one finds it empty again.
FILLS = (
    PREAMBLE
    + """
note('ran')
if task['attempt_id'] == 1:
    try:
        with open('ballast', 'wb', buffering=0) as file:
            while True: file.write(b'x' * 4096)
    except OSError: pass
    print('there is no room left', flush=True)
    sys.exit(1)
"""
)
# What we have to write when it fails finds room: only the disk itself can say whose fault it was.
FILLS_NEARLY = FILLS.replace(
    "    print('there is no room left', flush=True)\n",
    "    os.truncate('ballast', os.path.getsize('ballast') - 32768)\n",
)


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("only root may mount a disk of its own")
    folder = tmp_path / "tiny"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "accsd-test", folder], check=False)
    if mounted.returncode != 0:
        pytest.skip("no disk can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def fill_up(file: Path) -> None:
    with file.open("wb", buffering=0) as growing:
        while True:
            growing.write(b"x" * 4096)


async def lost_for_want_of_disk(accsd: Daemon, job: UUID) -> None:
    await eventually(lambda: [each for each in accsd.log("ended") if each["job_id"] == str(job)], within=30)
    first = next(each for each in accsd.log("ended") if each["job_id"] == str(job))
    assert (first["verdict"], first["code"]) == ("Infrastructure", "agent_disk")


async def test_below_the_watermark_nothing_is_claimed_until_it_is_lowered(
    tmp_path: Path, db_url: str, conn: Connection
):
    note, service = tmp_path / "notes", toml_service("render", NOTE)
    with daemon.running(tmp_path, db_url, config=f'node.min_free_disk = "1000000g"\n{service}') as accsd:
        job = await submit(conn, step("a"), options={"note": str(note)})
        await eventually(lambda: any("MiB free" in each["reason"] for each in accsd.log("no_claims")), within=20)
        assert await conn.fetchval("SELECT attempt_id FROM job_tasks WHERE job_id = $1", job) == 0
        accsd.config.write_text(service)
        accsd.signal(signal.SIGHUP)
        assert (await outcome(conn, job))["attempt_id"] == 1
    assert len(notes(note)) == 1


@pytest.mark.parametrize("fills", [FILLS, FILLS_NEARLY], ids=["full", "nearly full"])
async def test_a_full_disk_spends_no_attempt_and_the_daemon_goes_on(
    tmp_path: Path, db_url: str, conn: Connection, tiny_disk: Path, fills: str
):
    note, ballast = tmp_path / "notes", tiny_disk / "ballast"
    config = 'node.min_free_disk = "0"\n' + toml_service("render", fills)
    environ = {"ACC_STATE_DIR": str(tiny_disk), "ACC_STORAGE_URL": f"file://{tmp_path / 'store'}"}
    with daemon.running(tmp_path, db_url, config=config, environ=environ) as accsd:
        filling = await submit(conn, step("a", max_attempts=1), options={"note": str(note)})
        await lost_for_want_of_disk(accsd, filling)
        row = await outcome(conn, filling)
        assert (row["status"], row["attempt"], row["lost"]) == ("done", 0, 1)

        with pytest.raises(OSError, match="No space"):
            fill_up(ballast)
        unlucky = await submit(conn, step("a", max_attempts=1), options={"note": str(note)})
        await lost_for_want_of_disk(accsd, unlucky)
        ballast.unlink()
        row = await outcome(conn, unlucky)
        assert (row["status"], row["attempt"]) == ("done", 0)
        assert accsd.stop() == 0
    assert list((tiny_disk / "n1" / "attempts").iterdir()) == []
    await check(conn)
