"""Discovery beside the rest of a node: what it finds is not applied any more when the node leaves."""

from collections.abc import Mapping
from pathlib import Path

from accsd.agent.discovery import Discovery
from accsd.agent.services import SettingsSource
from accsd.model.fence import Fence
from accsd.work.service import LocalService
from tests.support.attempts import node_of
from tests.support.cluster import Connection
from tests.support.factory import NODE, node
from tests.support.library import opened


class NoServices:
    async def services(self) -> Mapping[str, LocalService]:
        return {}

    async def discard(self, fence: Fence, service: str) -> None:
        raise AssertionError(f"{service}: nothing was left")


async def test_a_pass_that_began_before_the_drain_does_not_register_the_node_again(db_url: str, conn: Connection):
    """A registration would say that the node is awake, after its goodbye."""
    await node(conn)
    async with opened(db_url) as db:
        here = node_of(db)
        here.services = {}
        await conn.fetch("SELECT accs.node_leaves($1)", NODE)
        gone = await conn.fetchval("SELECT awake_state FROM nodes")
        await Discovery(here, [NoServices()], choose=lambda: False).run_once()
        assert await conn.fetchval("SELECT awake_state FROM nodes") == gone != "awake"
        await Discovery(here, [NoServices()], choose=lambda: True).run_once()
        assert await conn.fetchval("SELECT awake_state FROM nodes") == "awake", "as it does while the node stays"


async def test_a_node_registers_the_tools_that_its_services_declare(db_url: str, conn: Connection, tmp_path: Path):
    (tmp_path / "render.yaml").write_text("input_schema: {required: [scene]}")
    render = {"runner": "process", "command": ["true"], "tool": "media.render", "tool_schema": "render.yaml"}
    async with opened(db_url) as db:
        here = node_of(db, services={"render": render})
        here.services = {}
        await Discovery(here, [SettingsSource(here, tmp_path)], choose=lambda: True).run_once()
    assert await conn.fetchval("SELECT document FROM accs.tool_offers WHERE node = $1", here.name) == {
        "name": "media.render",
        "service": "render",
        "input_schema": {"required": ["scene"]},
    }
