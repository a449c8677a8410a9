"""`accsd dead list`: the reason in words that send a person to the right place."""

import pytest

from tests.support.cli import Cli
from tests.support.cluster import SERVER_NAMES, Clusters, Connection, TestServer
from tests.support.factory import claim, node, pass_time, step, submit


@pytest.fixture
def server(clusters: Clusters) -> TestServer:
    return clusters.get(SERVER_NAMES[0])


@pytest.mark.parametrize(
    ("code", "words"), [("image_missing", "could not be started"), ("worker_lost", "lost its node too often")]
)
async def test_only_what_lost_its_node_is_said_to_have_lost_it(db_url: str, conn: Connection, code: str, words: str):
    """The database has one word for all of them: lost_too_often."""
    await node(conn, render=1)
    await submit(conn, step("a"))
    while claimed := await claim(conn):
        await conn.fetch(
            "SELECT * FROM accs.release_tasks($1, $2, 'owner-1', 'no', true, NULL, $3)",
            [claimed[0]["task_id"]], [claimed[0]["attempt_id"]], code,
        )  # fmt: skip
        await pass_time(conn, 3600)
        await node(conn, render=1)
    cli = Cli(db_url)
    [letter] = (await cli("dead", "list", "-o", "json")).json
    assert (letter["reason"], letter["error_code"]) == ("lost_too_often", code)
    (await cli("dead", "list")).ends(0, words)
