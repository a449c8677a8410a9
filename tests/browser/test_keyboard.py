"""All of the page by keys alone."""

import re

from playwright.async_api import expect

from tests.support.browser import Tab, browsing
from tests.support.cluster import Connection
from tests.support.factory import claim, fail, node, start, step, submit_to, workflow
from tests.support.gateway import Gateway

_FOCUS = """() => {
  const at = document.activeElement, style = getComputedStyle(at);
  const isShown = at.matches(":focus-visible, [type=date]"); // of a date one of its parts has the focus
  return {text: (at.innerText || at.getAttribute("aria-label") || at.value || "").trim(), tag: at.tagName,
    isVisible: isShown && style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2};
}"""
_MOST_TABS = 80


async def _focus(tab: Tab) -> str:
    """What has the focus; it can be seen where it is."""
    found = await tab.page.evaluate(_FOCUS)
    assert found["isVisible"], found
    return found["text"]


async def _tab_to(tab: Tab, wanted: str, *, tag: str = "") -> None:
    for _ in range(_MOST_TABS):
        await tab.page.keyboard.press("Tab")
        found = await tab.page.evaluate(_FOCUS)
        if found["tag"] in ("BODY", "MAIN", "DIALOG"):
            continue
        if re.search(wanted, await _focus(tab)) and tag in ("", found["tag"]):
            return
    raise AssertionError(f"the keyboard does not reach {wanted}")


async def test_a_failed_job_is_found_read_and_run_again_by_keys(conn: Connection, gateway: Gateway):
    """Flow 13."""
    await node(conn, render=1)
    flow = await workflow(conn, step("cut"), name="media")
    job = await submit_to(conn, flow)
    (task,) = await claim(conn)
    await start(conn, task)
    await fail(conn, task, message="it broke", permanent=True)
    async with browsing(gateway) as tab:
        press = tab.page.keyboard.press
        await tab.log_in("operate")
        await tab.page.get_by_role("heading", name="Needs you").wait_for()
        await press("g")
        await press("j")
        await tab.page.get_by_role("heading", name="Jobs", exact=True).wait_for()
        await tab.page.locator(f"main a[href*='{job}']").first.wait_for()
        await press("/")
        assert await tab.page.evaluate("document.activeElement.type") == "search"
        await _focus(tab)
        await tab.page.keyboard.type("status:error")
        await press("Enter")
        await expect(tab.page).to_have_url(re.compile("status"))
        await _tab_to(tab, str(job)[-8:], tag="A")
        await press("Enter")
        await expect(tab.page).to_have_url(re.compile(str(job)))
        await tab.page.locator(".head .state").get_by_text("error").wait_for()
        await _tab_to(tab, r"(?i)\blog\b")
        await press("Enter")
        await _tab_to_from_top(tab, "^Retry")
        await press("Enter")
        sheet = tab.page.get_by_role("dialog")
        await sheet.locator("li").get_by_text("cut").first.wait_for()
        await _tab_to(tab, "^Retry")
        await press("Enter")
        await tab.page.locator(".head .state").get_by_text(re.compile("queued|running")).first.wait_for()


async def _tab_to_from_top(tab: Tab, wanted: str) -> None:
    await tab.page.evaluate("document.querySelector('.skip').focus()")
    await _tab_to(tab, wanted)


async def test_rows_are_walked_the_palette_does_things_and_single_keys_are_switched_off(
    conn: Connection, gateway: Gateway
):
    """Flow 13."""
    for name in ("gpu-1", "gpu-2"):
        await node(conn, name, render=1)
    async with browsing(gateway) as tab:
        press = tab.page.keyboard.press
        await tab.log_in("operate")
        await tab.open("/fleet")
        await tab.page.get_by_role("link", name="gpu-2").first.wait_for()
        await press("j")
        assert await _focus(tab) == "gpu-1"
        await press("j")
        assert await _focus(tab) == "gpu-2"
        await press("k")
        await press("Shift+D")
        sheet = tab.page.get_by_role("dialog")
        await sheet.get_by_text("accsd nodes drain gpu-1").wait_for()
        await press("Escape")
        await sheet.wait_for(state="detached")
        assert await _focus(tab) == "gpu-1"  # the focus is where it was

        await press("Control+k")
        await tab.page.keyboard.type("drain gpu-2")
        await sheet.get_by_text("accsd nodes drain gpu-2").wait_for()
        await press("Enter")
        await sheet.get_by_label("Reason, for the history").wait_for()
        await _tab_to(tab, "^Drain$")
        await press("Enter")
        await tab.page.get_by_role("row", name=re.compile("gpu-2")).get_by_text("drained").first.wait_for()

        await press("?")
        await sheet.get_by_role("heading", name="On this page").wait_for()
        await sheet.get_by_label("Single keys do something").uncheck()
        await press("Escape")
        await press("g")
        await press("j")
        await press("Control+k")  # this one always does something
        await tab.page.get_by_role("combobox", name="Search").wait_for()
        assert tab.page.url.endswith("/fleet")
