"""The frame of the page: who gets in, what is live, what a hostile name can not do."""

import hashlib
from pathlib import Path
from urllib.parse import quote

from accsd.gateway.routes.page import PAGES
from tests.support.browser import browsing
from tests.support.cluster import Connection
from tests.support.factory import NODE, claim, fail, finish, node, start, step, submit_to, workflow
from tests.support.gateway import Gateway

VENDOR = Path(__file__).parents[2] / "accsd" / "web" / "vendor"
CANARY = "<img src=x onerror=\"document.title='owned'\">"


def test_what_is_vendored_is_what_the_manifest_says():
    listed = [line.split() for line in (VENDOR / "MANIFEST").read_text(encoding="utf-8").splitlines()]
    assert {name for _, name, *_ in listed} == {file.name for file in VENDOR.iterdir()} - {"MANIFEST"}
    for digest, name, *_ in listed:
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest, name


async def test_a_job_is_followed_live_from_queued_to_done(conn: Connection, gateway: Gateway):
    """Flow 2: no reload, and every state is told in words."""
    await node(conn, render=1)
    await workflow(conn, step("cut", "render"), name="media")
    async with browsing(gateway) as tab:
        await tab.log_in("operate")
        await tab.open("/workflows/media")
        await tab.page.get_by_role("button", name="Submit").click()
        status = tab.page.locator(".head .state")
        await status.get_by_text("running").wait_for()
        [task] = await claim(conn, service="render")
        await start(conn, task)
        await tab.page.get_by_label("Steps").get_by_text("running").wait_for()
        await finish(conn, task)
        await status.get_by_text("done").wait_for()


async def test_a_hostile_name_is_text_on_every_page(conn: Connection, gateway: Gateway):
    """Flow 18."""
    await node(conn, render=1)
    flow = await workflow(conn, step("cut", "render"), name=CANARY)
    job = await submit_to(conn, flow)
    [task] = await claim(conn, service="render")
    await fail(conn, task, message=CANARY, permanent=True)
    await conn.execute(
        "INSERT INTO schedules (name, title, schedule_kind, schedule_expr, workflow)"
        " VALUES ('s', $1, 'cron', '0 3 * * *', $1)",
        CANARY,
    )
    subjects = {"/jobs": str(job), "/fleet": NODE, "/workflows": quote(CANARY, safe=""), "/schedules": "s"}
    subjects |= {"/services": "render", "/triggers": "s", "/tools": "s", "/system": "audit"}
    async with browsing(gateway) as tab:
        await tab.log_in("admin")
        for path in PAGES:
            await tab.open(path.replace("{subject}", subjects.get(path.removesuffix("/{subject}"), "")))
            assert await tab.page.title() != "owned"
            assert await tab.page.locator("main img").count() == 0


async def test_who_may_only_read_sees_what_could_be_done_and_why_not(conn: Connection, gateway: Gateway):
    """Flow 12."""
    flow = await workflow(conn, step("cut", "render"), name="media")
    job = await submit_to(conn, flow)
    async with browsing(gateway) as tab:
        await tab.log_in("read")
        await tab.open(f"/jobs/{job}")
        cancel = tab.page.get_by_role("button", name="Cancel")
        assert await cancel.is_disabled()
        assert await cancel.get_attribute("title") == "needs the scope submit"
