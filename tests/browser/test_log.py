"""The log viewer: any length, complete search, an end that is followed, and content that stays text."""

import pytest

from accsd.db import Fence, TaskEvent, append_task_events
from tests.support.browser import Tab, browsing
from tests.support.cluster import Connection
from tests.support.eventually import eventually
from tests.support.factory import OWNER, Claimed, finish, node, started, step, submit
from tests.support.gateway import Gateway
from tests.support.stored import log, stored_log

HITS = 1922
HOSTILE = {
    11: "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>",
    12: "\x1b[1;31mred\x1b[0m \x1b[2J\x1b[999;999H plain",
    13: "\x1b]8;;https://evil.example/\x07press me\x1b]8;;\x07",
    14: "photo\u202egnp.exe",
    15: "before\x00after",
    16: "x" * (4 << 20),
}


def _texts(lines: int) -> list[str]:
    texts = [f"frame {n} is rendered" for n in range(1, lines + 1)]
    for n, text in HOSTILE.items():
        texts[n - 1] = text
    for n in range(HITS):
        texts[100 + n * (lines // 2000)] += " needle"
    return texts


async def _is_one_to_the_end(tab: Tab, conn: Connection, gateway: Gateway, lines: int) -> None:
    await node(conn)
    job = await submit(conn, step("a"))
    [task] = await started(conn)
    await stored_log(gateway, task, log(*_texts(lines)))
    await finish(conn, task)
    await tab.log_in("read")
    await tab.open(f"/jobs/{job}/log?step=a")
    await tab.page.get_by_label(f"Line {lines}", exact=True).wait_for()
    await tab.page.get_by_label("Go to line").fill(str(lines // 2))
    await tab.page.keyboard.press("Enter")
    await tab.page.get_by_text(f"frame {lines // 2} is rendered").first.wait_for()
    await tab.page.get_by_label("Search the whole log").fill("NEEDLE")
    await tab.page.keyboard.press("Enter")
    await tab.page.get_by_text(f"1 of {HITS:,}", exact=True).wait_for()
    await tab.page.get_by_role("button", name="Next hit").click()
    await tab.page.get_by_text(f"2 of {HITS:,}", exact=True).wait_for()
    await tab.page.get_by_label("Go to line").fill("12")
    await tab.page.keyboard.press("Enter")
    await tab.page.get_by_label("Line 16", exact=True).wait_for()


async def _text(tab: Tab, n: int) -> str:
    return await tab.page.locator(f'.line[data-n="{n}"] .text').inner_text()


async def test_a_long_log_is_reached_by_line_searched_whole_and_harmless(conn: Connection, gateway: Gateway):
    """Flow 8."""
    async with browsing(gateway) as tab:
        await _is_one_to_the_end(tab, conn, gateway, 100_000)
        assert await _text(tab, 11) == HOSTILE[11]
        assert await _text(tab, 12) == "red  plain"
        assert await _text(tab, 13) == "press me"
        assert await _text(tab, 14) == "photo⟨U+202E⟩gnp.exe"
        assert await _text(tab, 15) == "before^@after"
        cut = await _text(tab, 16)
        assert len(cut) < 5_000
        assert "4,194,304 characters" in cut
        assert await tab.page.title() != "owned"
        lines = tab.page.locator(".log-lines")
        assert await lines.locator("img, script").count() == 0
        assert await lines.locator("a:not(.n)").count() == 0


@pytest.mark.soak
async def test_a_log_of_a_million_lines_is_like_a_short_one(conn: Connection, gateway: Gateway):
    """Flow 8, at length."""
    async with browsing(gateway) as tab:
        tab.page.set_default_timeout(300_000)
        await _is_one_to_the_end(tab, conn, gateway, 1_000_000)


async def test_the_end_is_followed_until_somebody_scrolls_up(conn: Connection, gateway: Gateway):
    """Flow 8: nothing jumps under who reads, and what came is counted."""
    await node(conn)
    job = await submit(conn, step("a"))
    [task] = await started(conn)
    await _say(gateway, task, 1, 200)
    async with browsing(gateway) as tab:
        await tab.log_in("read")
        await tab.open(f"/jobs/{job}/log?step=a")
        await tab.page.get_by_label("Line 200", exact=True).wait_for()
        await _say(gateway, task, 201, 240)
        await tab.page.get_by_label("Line 240", exact=True).wait_for()
        frame = tab.page.locator(".log-frame")
        place = await frame.evaluate("frame => { frame.scrollTop = 500; return frame.scrollTop; }")
        await tab.page.get_by_role("button", name="Follow", pressed=False).wait_for()
        await _say(gateway, task, 241, 270)
        await tab.page.get_by_role("button", name="30 new lines").wait_for()
        assert await frame.evaluate("frame => frame.scrollTop") == place
        await tab.page.get_by_role("button", name="30 new lines").click()
        await tab.page.get_by_label("Line 270", exact=True).wait_for()

        async def at_the_end() -> bool:
            return await frame.evaluate("f => f.scrollTop + f.clientHeight >= f.scrollHeight - 4")

        await eventually(at_the_end)


async def _say(gateway: Gateway, task: Claimed, first: int, last: int) -> None:
    fence = Fence(task["task_id"], task["attempt_id"])
    events = [TaskEvent(fence, f"line {n}") for n in range(first, last + 1)]
    await append_task_events(gateway.context.verbs, events, owner=OWNER)
