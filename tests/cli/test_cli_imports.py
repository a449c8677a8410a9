"""What a command imports before it answers. Time depends on the machine; the number of modules does not."""

import json
import subprocess
import sys

import pytest

from tests.support.cli import Cli
from tests.support.cluster import Connection
from tests.support.factory import step, submit

# 474 took 0.34 s of CPU on the machine where 346 take 0.22 s.
MOST_MODULES = 360
# Each is the work of other commands, or of the daemon.
NOT_FOR_A_LIST = {
    "accsd.daemon",
    "accsd.demo",
    "accsd.embedded",
    "accsd.log",
    "accsd.metrics",
    "accsd.model.workflow",
    "accsd.proc",
    "accsd.builder",
    "accsd.agent",
    "accsd.runners",
    "accsd.storage",
    "accsd.work",
    "aiobotocore",
    "aiohttp",
    "anyio",
    "botocore",
    "prometheus_client",
    "pygments",
    "rich",
    "structlog",
    "wakeonlan",
    "yaml",
}
IMPORTED = """
import json, sys
from accsd.cli import main
main(sys.argv[1:], standalone_mode=False)
print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""


def imported_by(cli: Cli, *arguments: str) -> set[str]:
    ended = subprocess.run(
        [sys.executable, "-c", IMPORTED, *arguments],
        env=cli.environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return set(json.loads(ended.stderr.splitlines()[-1]))


@pytest.mark.parametrize("arguments", [["jobs"], ["jobs", "--status", "running", "-o", "json"]])
async def test_a_list_of_jobs_imports_what_it_needs(db_url: str, conn: Connection, arguments: list[str]):
    await submit(conn, step("a"))
    modules = imported_by(Cli(db_url), *arguments)
    assert NOT_FOR_A_LIST & modules == set()
    assert len(modules) <= MOST_MODULES


async def test_help_waits_for_no_database_driver():
    modules = imported_by(Cli(None), "--help")
    assert (NOT_FOR_A_LIST | {"asyncio", "asyncpg", "pydantic"}) & modules == set()
    assert len(modules) <= 120
