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
MOST_FILES = 52
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
    attempts = tmp_path / "state" / "n1" / "attempts"

    async def run_one(times: int) -> None:
        options = {"note": str(tmp_path / "note")}
        await conn.execute("INSERT INTO jobs (workflow_id, options) VALUES ($1, $2)", workflow, options)
        await eventually(lambda: len(node.log("ended")) == times and not list(attempts.iterdir()), within=30)

    with daemon.running(tmp_path, db_url, config=toml_service("render", EVERYTHING), prefix=traced) as node:
        await run_one(1)  # what belongs to the start is over by then
        node.signal(signal.SIGUSR1)
        await run_one(2)
        node.signal(signal.SIGUSR2)
        await eventually(found.exists, within=10)
    assert await conn.fetch("SELECT status FROM jobs") == [("done",), ("done",)]
    functions = [line.split(" ", 1) for line in found.read_text().splitlines() if line.startswith(str(HOUSE))]
    files = sorted({str(Path(file).relative_to(HOUSE)) for file, _ in functions})
    print(f"{len(functions)} functions in {len(files)} files: {' '.join(files)}")
    assert 20 < len(files) <= MOST_FILES, files


async def test_the_roles_are_the_golden_ones(tmp_path: Path, db_url: str, conn: Connection):
    config = toml_service("render", EVERYTHING) + EVERY_ROLE
    with daemon.running(tmp_path, db_url, config=config, http=True) as node:
        node.wait_for("node_registered")
        compare("roles", node.health()["roles"])
