"""Real processes, against one PostgreSQL; what tests of containers share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Connection
from tests.support.cluster import server as server
from tests.support.compose import ComposeProject, why_not
from tests.support.compose_node import ComposeNode


@pytest.fixture
async def reloaded(conn: Connection) -> None:
    """The server of the module has read its pg_hba.conf again, which names the test's hosts."""
    await conn.execute("SELECT pg_reload_conf()")


@pytest.fixture(scope="module")
def compose_engine() -> None:
    if reason := why_not():
        pytest.skip(reason)


@pytest.fixture
def world(compose_engine: None, tmp_path: Path) -> Iterator[ComposeProject]:
    """A compose project of the test's own, for its runners."""
    project = ComposeProject(tmp_path)
    yield project
    project.close()


@pytest.fixture
def node(compose_engine: None, tmp_path: Path) -> Iterator[ComposeNode]:
    """A node with a compose file, for daemons."""
    made = ComposeNode(tmp_path)
    yield made
    made.close()
