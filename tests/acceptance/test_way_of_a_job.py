"""The way of one job through the house: how many files a reader has to open who follows it (docs/architecture.md)."""

import signal
import sys
from pathlib import Path

import accsd
from tests.support import daemon
from tests.support.cluster import Connection
from tests.support.eventually import eventually
from tests.support.factory import step
from tests.support.goldens import compare
from tests.support.tasks import EVERYTHING, toml_service

HOUSE = Path(accsd.__file__).parent
MOST_FILES = 85
EVERY_ROLE = """
[sleep]
method = "script"
script = "/bin/true"
[retention]
jobs = "9d"
[outbox.targets.studio]
url = "https://studio.example.invalid/"
secret = "a-secret-of-the-studio"
"""


async def test_one_job_passes_through_few_files(tmp_path: Path, db_url: str, conn: Connection):
    found = tmp_path / "found"
    traced = [sys.executable, "-m", "tests.support.traced", str(found)]
    workflow = await conn.fetchval("INSERT INTO workflows (name, steps) VALUES ('w', $1) RETURNING id", [step("a")])
    with daemon.running(tmp_path, db_url, config=toml_service("render", EVERYTHING), prefix=traced) as node:
        node.wait_for("node_registered")
        node.signal(signal.SIGUSR1)
        job = await conn.fetchval(
            "INSERT INTO jobs (workflow_id, options) VALUES ($1, $2) RETURNING id",
            workflow,
            {"note": str(tmp_path / "note")},
        )
        await eventually(lambda: bool(node.log("ended")), within=30)
        attempts = tmp_path / "state" / "n1" / "attempts"
        await eventually(lambda: not list(attempts.iterdir()), within=30)
        node.signal(signal.SIGUSR2)
        await eventually(found.exists, within=10)
        assert await conn.fetchval("SELECT status FROM jobs WHERE id = $1", job) == "done"
    functions = [line.split(" ", 1) for line in found.read_text().splitlines() if line.startswith(str(HOUSE))]
    files = sorted({str(Path(file).relative_to(HOUSE)) for file, _ in functions})
    print(f"{len(functions)} functions in {len(files)} files: {' '.join(files)}")
    assert 20 < len(files) <= MOST_FILES, files


async def test_the_roles_are_the_golden_ones(tmp_path: Path, db_url: str, conn: Connection):
    config = toml_service("render", EVERYTHING) + EVERY_ROLE
    with daemon.running(tmp_path, db_url, config=config, http=True) as node:
        node.wait_for("node_registered")
        compare("roles", node.health()["roles"])
