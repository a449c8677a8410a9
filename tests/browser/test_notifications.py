"""Jobs that somebody wants to hear of: the browser tells their end, also in a tab that nobody looks at."""

from typing import Any

from tests.browser.test_outage import _HIDE
from tests.support.browser import Tab, browsing
from tests.support.cluster import Connection
from tests.support.eventually import eventually
from tests.support.factory import fail, finish, node, started, step, submit_to, workflow
from tests.support.gateway import Gateway

# What the browser was asked to show; it does show it.
_NOTES = """globalThis.told = [];
globalThis.Notification = class extends Notification {
  constructor(title, options) { super(title, options); told.push([title, options.body]); }
};"""


async def _told(tab: Tab, *expected: list[str]) -> None:
    await eventually(lambda: _is(tab, expected), within=20)


async def _is(tab: Tab, expected: Any) -> bool:
    found = await tab.page.evaluate("told")
    assert found == list(expected), found
    return True


async def test_the_end_of_a_watched_job_is_told_also_where_nobody_looks(conn: Connection, gateway: Gateway):
    await node(conn)
    flow = await workflow(conn, step("frame", max_attempts=1), name="media")
    jobs = [await submit_to(conn, flow) for _ in range(3)]
    good, bad, other = sorted(await started(conn, 3), key=lambda task: jobs.index(task["job_id"]))
    async with browsing(gateway, permissions=["notifications"]) as tab:
        await tab.page.clock.install()
        await tab.page.add_init_script(_NOTES)
        await tab.log_in("read")
        for job in jobs[:2]:
            await tab.open(f"/jobs/{job}")
            await tab.page.get_by_role("button", name="Tell me when it ends").click()
        await finish(conn, good)
        await finish(conn, other)
        await _told(tab, [f"media {str(jobs[0])[-8:]} is done", ""])
        await tab.page.get_by_role("status").get_by_text("is done").wait_for()

        await tab.page.evaluate(_HIDE, True)
        await fail(conn, bad, message="out of memory", permanent=True)
        await tab.page.clock.fast_forward(15_000)
        await _told(
            tab,
            [f"media {str(jobs[0])[-8:]} is done", ""],
            [f"media {str(jobs[1])[-8:]} has failed", "out of memory"],
        )
        assert (await tab.page.title()).startswith("✕ ")
        await tab.page.evaluate(_HIDE, False)
        await eventually(lambda: _title_is(tab, f"{str(jobs[1])[-8:]} · accsd"))
        assert await tab.page.evaluate("localStorage['accsd.watched']") == "[]"


async def _title_is(tab: Tab, text: str) -> bool:
    return await tab.page.title() == text
