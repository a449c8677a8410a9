"""`accsd nodes remove`: a machine that is gone for good."""

import pytest

from tests.support.cli import Cli
from tests.support.cluster import Connection
from tests.support.factory import NODE, claim, node, pass_time, step, submit


@pytest.fixture
async def cli(db_url: str, conn: Connection) -> Cli:
    await node(conn)
    return Cli(db_url)


async def test_a_machine_that_was_seen_lately_is_not_removed(cli: Cli, conn: Connection):
    (await cli.process("nodes", "remove", NODE)).ends(
        1, "is not removed: it was seen a moment ago", f"→ stop accsd on {NODE}"
    )
    await pass_time(conn, 130)
    (await cli.process("nodes", "remove", NODE)).ends(0, f"node {NODE} is forgotten")
    assert (await cli("nodes", "-o", "name")).out == ""
    (await cli("nodes", "remove", NODE)).ends(3, NODE)


async def test_one_that_has_said_goodbye_is_removed_at_once_and_may_come_back(cli: Cli, conn: Connection):
    await conn.fetch("SELECT accs.node_leaves($1)", NODE)
    (await cli("nodes", "remove", NODE)).ends(0)
    await node(conn)
    assert (await cli("nodes", "-o", "name")).out.split() == [NODE]


async def test_one_that_holds_tasks_is_not_removed(cli: Cli, conn: Connection):
    job = await submit(conn, step("a"))
    await claim(conn)
    await pass_time(conn, 130)
    (await cli("nodes", "remove", NODE)).ends(1, "it holds tasks", "→ they are taken from it when their leases end")
    await conn.fetch("SELECT * FROM accs.reclaim_tasks()")
    (await cli("nodes", "remove", NODE)).ends(0)
    assert NODE in (await cli("job", str(job), "-o", "json")).ends(0).out, "what it did stays in the history"
