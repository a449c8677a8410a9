"""A link to one job: made by somebody on duty, looked at by somebody without an account, and taken back."""

from pathlib import Path

from playwright.async_api import Dialog

from accsd.db.access import create_code
from accsd.model.access import Scope
from tests.support.browser import browsing
from tests.support.cluster import Connection
from tests.support.eventually import eventually
from tests.support.factory import finish, node, started, step, submit_to, workflow
from tests.support.gateway import serving


async def test_a_link_shows_one_job_as_it_goes_on_and_nothing_else_until_it_is_revoked(
    conn: Connection, db_url: str, tmp_path: Path
):
    """Flow 12."""
    await node(conn)
    flow = await workflow(conn, step("frame"), name="media")
    job, other = await submit_to(conn, flow), await submit_to(conn, flow)
    running = await started(conn)
    async with (
        serving(db_url, folder=tmp_path, hears=True, gateway={"shares": True}) as gateway,
        browsing(gateway) as ours,
        browsing(gateway) as theirs,
    ):
        await ours.log_in("operate")
        await ours.open(f"/jobs/{job}")
        await ours.page.get_by_role("button", name="Share").click()
        await ours.page.get_by_role("button", name="Make a link").click()
        link = await ours.page.locator("dialog code").inner_text()
        await ours.page.get_by_role("table", name="Links to this job").wait_for()

        await theirs.page.goto(link)
        await theirs.page.get_by_role("heading", name="media").wait_for()
        await theirs.page.get_by_text("● live").wait_for()
        assert "share=" not in theirs.page.url
        assert await theirs.page.get_by_role("navigation", name="Pages").count() == 0
        main = await theirs.page.locator("main").inner_text()
        assert not [word for word in ("Cancel", "Rerun", "Share", "Log", "Why") if word in main]
        for part in ("attempts", "events", "details", "table&step=frame&part=results"):
            await theirs.open(f"/jobs/{job}?tab={part}")
            await theirs.settle()
        await finish(conn, *running)
        await theirs.page.locator('.head [data-state="done"]').wait_for()
        for elsewhere in ("/", f"/jobs/{other}", "/fleet"):
            await theirs.open(elsewhere)
            await theirs.page.get_by_text("This link shows one job").wait_for()

        # a link with a token that is no share logs nobody in as its owner; with a code it asks who is logged in already
        await theirs.page.context.clear_cookies()
        await theirs.page.goto(f"{gateway.url}/jobs/{other}#share={await gateway.token('submit')}")
        await theirs.page.get_by_text("This link shows nothing any more.").wait_for()
        asked: list[str] = []

        async def refuse(dialog: Dialog) -> None:
            asked.append(dialog.message)
            await dialog.dismiss()

        ours.page.on("dialog", refuse)
        code = await create_code(gateway.context.verbs, actor="mallory", scopes=[Scope.ADMIN])
        await ours.page.goto(f"{gateway.url}/jobs#code={code}")
        await ours.page.get_by_role("navigation", name="Pages").wait_for()
        assert len(asked) == 1
        assert "operate" in asked[0]
        assert await conn.fetchval("SELECT count(*) FROM accs.sessions WHERE actor = 'mallory'") == 0

        await ours.page.goto(link)
        await ours.page.wait_for_url(lambda address: "share=" not in address)
        await ours.page.get_by_role("navigation", name="Pages").wait_for()  # who is logged in stays who they are
        await ours.page.get_by_role("button", name="Share").click()
        await ours.page.get_by_role("button", name="Revoke").click()
        await eventually(lambda: _is_closed(conn), within=10)
        await theirs.page.goto(link)
        await theirs.page.get_by_text("This link shows nothing any more.").wait_for()
        theirs.excuse(401)


async def _is_closed(conn: Connection) -> bool:
    return await conn.fetchval("SELECT revoked_at IS NOT NULL FROM accs.tokens WHERE subject IS NOT NULL")
