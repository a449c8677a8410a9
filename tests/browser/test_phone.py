"""The page on a phone: nothing is wider than the screen, and a machine is woken with the thumb."""

from tests.support.browser import Tab, browsing
from tests.support.cluster import Connection
from tests.support.factory import claim, fail, node, start, step, submit_to, workflow
from tests.support.gateway import Gateway

WIDTH, HEIGHT = 360, 740
_SMALL = """() => [...document.querySelectorAll("button, summary, select, .rail a, input")]
  .filter(each => each.checkVisibility({visibilityProperty: true}) && !each.closest(".visually-hidden"))
  .map(each => [each, each.getBoundingClientRect()])
  .filter(([, box]) => box.width && (box.height < 23.5 || box.width < 23.5))
  .filter(([each]) => each.type !== "checkbox" && each.type !== "radio" && !each.matches(".link"))
  .map(([each]) => each.outerHTML.slice(0, 80))"""


async def _fits(tab: Tab, path: str) -> None:
    await tab.open(path)
    await tab.page.locator("main").get_by_role("heading").first.wait_for()
    assert await tab.page.evaluate("document.documentElement.scrollWidth") <= WIDTH, path
    assert await tab.page.evaluate(_SMALL) == [], path
    rail = await tab.page.locator(".rail").bounding_box()
    assert rail is not None
    assert round(rail["y"] + rail["height"]) == HEIGHT, path


async def test_overview_job_log_and_a_machine_are_used_on_a_phone(conn: Connection, gateway: Gateway):
    """Flow 15."""
    await node(conn, "gpu-1", render=1)
    await node(conn, "gpu-2", render=1)
    await conn.execute("UPDATE nodes SET wake_method = 'wol', mac = '02:00:00:00:00:01' WHERE name = 'gpu-2'")
    assert await conn.fetchval("SELECT accs.node_leaves('gpu-2', 'sleep', 'nothing waits for it')") == "accepted"
    flow = await workflow(conn, step("cut"), name="media")
    job = await submit_to(conn, flow)
    (task,) = await claim(conn, on="gpu-1")
    await start(conn, task)
    await fail(conn, task, message="used 8.1 of 8 GiB" * 9, permanent=True)
    async with browsing(gateway, viewport={"width": WIDTH, "height": HEIGHT}, has_touch=True) as tab:
        await tab.log_in("operate")
        for path in ("/", f"/jobs/{job}", f"/jobs/{job}?tab=log&step=cut", "/fleet", "/schedules", "/preferences"):
            await _fits(tab, path)
        await tab.page.get_by_role("navigation", name="Pages").get_by_role("link", name="Fleet").tap()
        await tab.page.get_by_role("table", name="Machines").get_by_role("link", name="gpu-2").tap()
        await tab.page.get_by_role("button", name="Wake", exact=True).tap()
        sheet = tab.page.get_by_role("dialog")
        await sheet.get_by_text("It is called by wol, now.").wait_for()
        box = await sheet.bounding_box()
        assert box is not None
        assert round(box["y"] + box["height"]) == HEIGHT  # it comes from below
        await sheet.get_by_role("button", name="Leave it").tap()
        await tab.page.get_by_label("More pages").tap()
        await tab.page.get_by_role("link", name="System").last.tap()
        await tab.page.get_by_role("heading", name="System").wait_for()
