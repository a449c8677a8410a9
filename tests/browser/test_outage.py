"""The page while the database or the gateway is away, without notifications, and in tabs that nobody looks at."""

from contextlib import AsyncExitStack
from pathlib import Path

from tests.support.browser import Tab, browsing
from tests.support.cable import Cable
from tests.support.cluster import Connection
from tests.support.eventually import eventually
from tests.support.factory import done, node, step, submit, submit_to, workflow
from tests.support.gateway import Gateway, serving

TABS = 8
_HIDE = """is => {
  Object.defineProperty(document, "hidden", {configurable: true, get: () => is});
  document.dispatchEvent(new Event("visibilitychange"));
}"""


async def _is_lost(tab: Tab) -> None:
    """It says since when, and that what is shown is old."""
    banner = tab.page.get_by_role("alert").filter(has_text="No connection since")
    await banner.wait_for()
    assert "What is shown is as of" in await banner.inner_text()
    await tab.page.locator(".light").get_by_text("lost since").wait_for()


async def _is_live(tab: Tab) -> None:
    await tab.page.locator(".light").get_by_text("live").wait_for()
    assert await tab.page.get_by_text("No connection since").count() == 0


async def test_an_outage_is_told_and_nothing_is_missed_when_it_is_over(
    conn: Connection, cable: Cable, by_cable: str, tmp_path: Path
):
    """Flow 11: the database is away, then the gateway itself."""
    await node(conn, render=1)
    flow = await workflow(conn, step("cut"), name="media")
    await submit_to(conn, flow)
    async with AsyncExitStack() as second, AsyncExitStack() as first:
        gateway = await first.enter_async_context(serving(by_cable, folder=tmp_path, hears=True))
        listen = gateway.url.removeprefix("http://")
        async with browsing(gateway) as tab:
            await tab.log_in("operate")
            await tab.open("/fleet/n1")
            drain = tab.page.get_by_role("button", name="Drain")
            assert await drain.is_enabled()
            cable.refuse()
            cable.cut()
            await _is_lost(tab)
            assert await drain.is_disabled()
            assert "no connection since" in str(await drain.get_attribute("title"))
            for _ in range(20):
                await submit_to(conn, flow)  # somebody works on, past the gateway
            await cable.accept()
            await _is_live(tab)
            assert await drain.is_enabled()
            await tab.page.get_by_role("link", name="Jobs", exact=True).click()
            await eventually(lambda: _counts(tab, 21), within=20)

            await first.aclose()
            await _is_lost(tab)
            await submit_to(conn, flow)
            await second.enter_async_context(serving(by_cable, folder=tmp_path, hears=True, gateway={"listen": listen}))
            await tab.page.get_by_role("button", name="Try now").click()
            await _is_live(tab)
            await eventually(lambda: _counts(tab, 22), within=20)
            tab.forgive("Failed to load resource")


async def _counts(tab: Tab, jobs: int) -> bool:
    """By the ids that links lead to: how a row looks is another's business."""
    links = await tab.page.locator("main a[href*='/jobs/']").evaluate_all(
        "all => new Set(all.map(each => new URL(each.href).pathname.slice(-36))).size"
    )
    return links == jobs


async def test_without_notifications_the_page_says_that_it_is_polled_and_why(db_url: str, tmp_path: Path):
    """Flow 11, behind a pooler without LISTEN."""
    async with serving(db_url, folder=tmp_path) as gateway, browsing(gateway) as tab:
        await tab.page.goto(gateway.url)
        await tab.page.get_by_label("Token").fill(await gateway.token("read"))
        await tab.page.get_by_role("button", name="Log in").click()
        light = tab.page.locator(".light").get_by_text("polling")
        await light.wait_for()
        assert "notifications are switched off" in str(await light.get_attribute("title"))


async def test_tabs_that_nobody_looks_at_hold_no_stream_and_come_back_without_a_reload(
    conn: Connection, gateway: Gateway
):
    """Flow 19. A browser without a screen hides no tab, so they are told that they are hidden."""
    flow = await workflow(conn, step("cut"), name="media")
    async with browsing(gateway) as tab:
        await tab.log_in("read")
        others: list[Tab] = []
        for number in range(2, TABS + 1):
            await (others or [tab])[-1].page.evaluate(_HIDE, True)
            others.append(await tab.another())
            await others[-1].open("/jobs" if number < TABS else "/fleet")
        last = others[-1]
        await last.page.get_by_text("● live").wait_for()
        await _streams(gateway, 1)
        await submit_to(conn, flow)
        await others[0].page.evaluate("window.same = true")
        await others[0].page.evaluate(_HIDE, False)
        await eventually(lambda: _counts(others[0], 1), within=20)
        await _streams(gateway, 2)
        assert await others[0].page.evaluate("window.same")


async def test_an_eighth_tab_looks_again_and_again_and_takes_the_place_of_one_that_is_closed(
    conn: Connection, gateway: Gateway
):
    """Flow 19. A browser has six connections to a host: a stream in each tab would leave none for anything else."""
    await node(conn)
    job = await submit(conn, step("a"))
    async with browsing(gateway) as tab:
        await tab.log_in("read")
        others = [await tab.another() for _ in range(7)]
        for other in others:
            await other.open(f"/jobs/{job}?tab=table")
        await _streams(gateway, 4)
        last = others[-1].page
        await last.get_by_text("◐ polling").wait_for()
        await done(conn)
        await last.locator("main tbody .state[data-state=done]").wait_for(timeout=8_000)
        for other in others[:2]:
            await other.page.close()

        async def two_have_a_stream_now() -> bool:
            lights = [await other.page.locator(".light").inner_text() for other in others[3:]]
            return lights.count("● live") == 2

        await eventually(two_have_a_stream_now, within=20)
        await _streams(gateway, 4)


async def _streams(gateway: Gateway, n: int) -> None:
    await eventually(lambda: gateway.context.hub.facts["streams"] == n, within=20)
