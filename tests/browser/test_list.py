"""The list of jobs: a look at one of them without leaving the list, and the way to a day."""

from datetime import timedelta
from zoneinfo import ZoneInfo

from tests.support.browser import browsing
from tests.support.cluster import Connection
from tests.support.factory import chain, clock, done, fail, job, node, pass_time, started, submit
from tests.support.gateway import Gateway
from tests.support.stored import log, stored_log


async def test_a_job_is_looked_at_without_leaving_the_list(conn: Connection, gateway: Gateway):
    await node(conn)
    failed = await submit(conn, *chain("cut", "render"))
    await done(conn)
    [task] = await started(conn)
    await stored_log(gateway, task, log("begins", "it goes wrong"), step="render")
    await fail(conn, task, permanent=True, message="8.1 of 8 GiB")
    waiting = await submit(conn, *chain("a", "b", service="nobody"))
    async with browsing(gateway) as tab:
        await tab.log_in("read")
        await tab.open("/jobs")
        await tab.page.get_by_role("link", name=str(failed)[-8:]).focus()
        await tab.page.keyboard.press("Space")
        look = tab.page.get_by_role("complementary", name=f"Job {str(failed)[-8:]}")
        await look.get_by_text("8.1 of 8 GiB").wait_for()
        await look.get_by_text("it goes wrong").wait_for()
        assert await look.get_by_role("button", name="render: error boom").count() == 1
        await tab.page.keyboard.press("k")
        other = tab.page.get_by_role("complementary", name=f"Job {str(waiting)[-8:]}")
        await other.get_by_text('offers service "nobody"').first.wait_for()
        assert f"look={waiting}" in tab.page.url, "the address says it"
        await tab.page.keyboard.press("Escape")
        await other.wait_for(state="detached")
        await tab.page.get_by_role("button", name=f"Look at {str(failed)[-8:]}").click()
        await look.get_by_role("button", name="render: error boom").click()
        await tab.page.get_by_role("complementary", name="Step render").wait_for()


async def test_the_list_begins_at_a_day_of_the_zone_that_is_shown(conn: Connection, gateway: Gateway):
    zone = ZoneInfo("Asia/Kolkata")
    midnight = (await clock(conn)).astimezone(zone).replace(hour=0, minute=0, second=0, microsecond=0)
    jobs = []
    for hours in (24 + 23, 48 + 1, 96):  # late in the day after, early in the next one, and later
        await pass_time(conn, (midnight + timedelta(hours=hours) - await clock(conn)).total_seconds())
        jobs.append(str(await submit(conn))[-8:])
    day = (await job(conn, await conn.fetchval("SELECT id FROM jobs ORDER BY order_seq LIMIT 1")))["created_at"]
    async with browsing(gateway, timezone_id=zone.key) as tab:
        await tab.log_in("read")
        await tab.open("/jobs")
        await tab.page.get_by_role("link", name=jobs[2]).wait_for()
        jump = tab.page.get_by_label("Jump to")
        await jump.evaluate("field => field.removeAttribute('max')")
        await jump.fill(day.astimezone(zone).date().isoformat())
        await tab.page.get_by_role("link", name=jobs[1]).wait_for(state="detached")
        await tab.page.get_by_role("link", name=jobs[0]).wait_for()
        assert await tab.page.get_by_role("link", name=jobs[2]).count() == 0
        assert await jump.input_value() == day.astimezone(zone).date().isoformat()
        await tab.page.get_by_label("Order").select_option("oldest")
        await jump.evaluate("field => field.removeAttribute('max')")
        await jump.fill((day.astimezone(zone).date() + timedelta(days=1)).isoformat())
        await tab.page.get_by_text("No job matches").wait_for()
        await tab.page.get_by_role("link", name="Take out until").click()
        await tab.page.get_by_role("link", name=jobs[1]).wait_for()
        assert await tab.page.locator("main tbody tr").count() == 2
