"""An empty database: the page says what is still to be done, and checks it off while it is done elsewhere."""

import json
from pathlib import Path

from accsd.db.access import end_session
from tests.support import daemon
from tests.support.browser import browsing
from tests.support.cli import Cli
from tests.support.cluster import Connection
from tests.support.gateway import Gateway
from tests.support.tasks import PREAMBLE, toml_service

FLOW = {"name": "hello", "steps": [{"key": "greet", "service": "note"}]}


async def test_the_first_run_checks_itself_off_and_a_link_logs_in_once(db_url: str, gateway: Gateway, tmp_path: Path):
    """Flow 1."""
    cli = Cli(db_url, ACC_GATEWAY_LISTEN=gateway.url.removeprefix("http://"))
    link = (await cli.process("open", "-o", "name")).ends(0).out.strip()
    flow = tmp_path / "hello.json"
    flow.write_text(json.dumps(FLOW))
    async with browsing(gateway) as tab:
        await tab.page.goto(link)
        done = tab.page.locator("li[data-done=true]")
        await tab.page.get_by_role("heading", name="Four commands to the first job").wait_for()
        assert await done.all_inner_texts() == ["✓\ndone:\nThe database answers, and has the schema"]
        assert "code" not in tab.page.url  # nobody who looks at the address learns it
        with daemon.running(tmp_path, db_url, role="all", config=toml_service("note", PREAMBLE)):
            await done.get_by_text("A builder is running").wait_for()
            await done.get_by_text("A machine is registered").wait_for()
            (await cli("workflows", "apply", str(flow))).ends(0)
            await done.get_by_text("A workflow is written").wait_for()
            (await cli("submit", "hello")).ends(0)
            await done.get_by_text("A job is done").wait_for()
        await tab.page.get_by_role("heading", name="accsd is ready").wait_for()
        await tab.page.get_by_role("button", name="Open the overview").click()
        await tab.page.get_by_role("heading", name="Needs you").wait_for()

        second = await tab.page.context.browser.new_page()  # pyright: ignore[reportOptionalMemberAccess] - it has one
        await second.goto(link)
        await second.get_by_text("This link does not log in any more.").wait_for()
        assert await second.get_by_role("button", name="Log in").is_visible()
        await second.close()


async def test_who_logs_in_again_is_where_the_session_ended(conn: Connection, gateway: Gateway):
    async with browsing(gateway) as tab:
        await tab.page.goto(f"{gateway.url}/schedules?kind=events")
        await tab.page.get_by_label("Token").fill("accs_wrong")
        await tab.page.get_by_role("button", name="Log in").click()
        await tab.page.get_by_role("alert").get_by_text("neither the token nor the code").wait_for()
        tab.forgive("401")
        await tab.page.get_by_label("Token").fill(await gateway.token("read"))
        await tab.page.get_by_role("button", name="Log in").click()
        await tab.page.get_by_role("heading", name="Schedules").wait_for()
        assert tab.page.url.endswith("/schedules?kind=events")

        await end_session(gateway.context.verbs, await conn.fetchval("SELECT id FROM accs.sessions"))
        await tab.page.get_by_role("link", name="Services").click()
        await tab.page.get_by_text("Your session has ended.").wait_for()
        assert tab.page.url.endswith("/services")
        tab.forgive("401")
