"""The log viewer: any length, complete search, an end that is followed, and content that stays text."""

from functools import partial
from itertools import pairwise

import pytest

from accsd.db import Fence, TaskEvent, append_task_events
from tests.support.browser import Tab, browsing
from tests.support.cluster import Connection
from tests.support.eventually import eventually
from tests.support.factory import OWNER, Claimed, finish, node, started, step, submit, submit_to, workflow
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


async def test_lines_are_chosen_by_level_and_output_with_what_is_around_them(conn: Connection, gateway: Gateway):
    await node(conn)
    job = await submit(conn, step("a"))
    [task] = await started(conn)
    special = {100: "it is odd", 5000: "it goes wrong", 20_000: "it is odd again"}
    await stored_log(gateway, task, log(*(special.get(n, f"line {n}") for n in range(1, 30_001))))
    await finish(conn, task)
    async with browsing(gateway) as tab:
        await tab.log_in("read")
        await tab.open(f"/jobs/{job}/log?step=a")
        await tab.page.get_by_label("Line 30000", exact=True).wait_for()
        await tab.page.get_by_label("Levels of lines").select_option("warn")
        await tab.page.get_by_text("3 of 30,000 lines").wait_for()
        await tab.page.get_by_text("it goes wrong").wait_for()
        await tab.page.get_by_text("line 20002").wait_for()
        assert await _numbers(tab) == [*range(98, 103), *range(4998, 5003), *range(19_998, 20_003)]
        await tab.page.get_by_label("Lines around each").select_option("0")
        await tab.page.locator('.line[data-n="98"]').wait_for(state="detached")
        assert await _numbers(tab) == [100, 5000, 20_000]
        link = await tab.page.get_by_role("link", name="Download these").get_attribute("href")
        assert link is not None
        assert link.endswith("/raw?level=warn&level=error")
        await tab.page.get_by_label("Levels of lines").select_option("all")
        await tab.page.get_by_label("Output").select_option("stderr")
        await tab.page.get_by_text("3 of 30,000 lines").wait_for()
        await tab.page.get_by_label("Output").select_option("all")
        await tab.page.get_by_text("line 101", exact=True).wait_for()


async def _numbers(tab: Tab) -> list[int]:
    return await tab.page.locator(".line").evaluate_all("lines => lines.map(line => Number(line.dataset.n))")


async def test_long_lines_are_broken_and_each_can_be_read_to_its_end(conn: Connection, gateway: Gateway):
    await node(conn)
    job = await submit(conn, step("a"))
    [task] = await started(conn)
    texts = [f"line {n} " + "word " * (n % 7) * 60 for n in range(1, 3001)]
    await stored_log(gateway, task, log(*texts))
    await finish(conn, task)
    async with browsing(gateway) as tab:
        await tab.log_in("read")
        await tab.open(f"/jobs/{job}/log?step=a")
        await tab.page.get_by_label("Line 3000", exact=True).wait_for()
        frame, wrap = tab.page.locator(".log-frame"), tab.page.get_by_role("button", name="Wrap")
        assert await frame.evaluate("frame => frame.scrollWidth > frame.clientWidth")
        await wrap.click()
        await eventually(lambda: frame.evaluate("frame => frame.scrollWidth <= frame.clientWidth"))

        async def last_is_seen() -> bool:
            return await tab.read(
                """() => { const last = document.querySelector('.line[data-n="3000"]')?.getBoundingClientRect();
                     const { top, bottom } = document.querySelector('.log-frame').getBoundingClientRect();
                     return Boolean(last) && last.height > 18 && last.bottom <= bottom && last.top >= top; }"""
            )

        await eventually(last_is_seen)
        await tab.page.get_by_label("Go to line").fill("1500")
        await tab.page.keyboard.press("Enter")
        await tab.page.locator('.line[data-n="1500"][data-selected]').wait_for()
        heights = "lines => lines.map(line => line.getBoundingClientRect()).map(box => [box.top, box.bottom])"
        for _ in range(
            4
        ):  # upwards through lines that were never measured: none overlaps another, and none is left out
            before = await _numbers(tab)
            await frame.evaluate("frame => frame.scrollBy(0, -300)")
            await eventually(partial(_has_moved, tab, before))
            boxes = await tab.page.locator(".line").evaluate_all(heights)
            assert all(abs(one[1] - next_[0]) < 1 for one, next_ in pairwise(boxes))
            seen = await _numbers(tab)
            assert seen == list(range(seen[0], seen[0] + len(seen)))
        await tab.open(f"/jobs/{job}/log?step=a")
        await tab.page.get_by_role("button", name="Wrap", pressed=True).wait_for()


async def _has_moved(tab: Tab, before: list[int]) -> bool:
    return (await _numbers(tab))[0] < before[0]


async def test_two_logs_stand_beside_each_other_and_scroll_by_their_time(conn: Connection, gateway: Gateway):
    await node(conn)
    flow = await workflow(conn, step("a"), step("b", after="a"))
    jobs = [await submit_to(conn, flow) for _ in range(2)]
    for job, sort in zip(jobs, ("good", "later"), strict=True):
        for key in ("a", "b"):
            [task] = await started(conn)
            texts = (f"{sort} {key} {n}" for n in range(1, 1001))
            await stored_log(gateway, {**task, "job_id": job}, log(*texts), step=key)
            await finish(conn, task)
    async with browsing(gateway) as tab:
        await tab.log_in("read")
        await tab.open(f"/jobs/{jobs[1]}/log?step=a")
        await tab.page.get_by_label("Beside it").select_option("the last good run")
        left, right = (tab.page.locator(".log-pair > div").nth(n) for n in range(2))
        left_lines, right_lines = (each.get_by_role("log") for each in (left, right))
        await left_lines.get_by_text("later a 1000").wait_for()
        await right_lines.get_by_text("good a 1000").wait_for()
        await left.get_by_label("Go to line").fill("300")
        await tab.page.keyboard.press("Enter")
        await right_lines.get_by_text("good a 300").wait_for()
        await tab.page.get_by_label("Scroll together").uncheck()
        await right.get_by_label("Go to line").fill("700")
        await tab.page.keyboard.press("Enter")
        await right_lines.get_by_text("good a 700").wait_for()
        assert await left_lines.get_by_text("later a 300", exact=True).count() == 1
        await tab.page.get_by_label("Beside it").select_option("b")
        await right_lines.get_by_text("later b 1000").wait_for()
        await tab.open(f"/jobs/{jobs[0]}/log?step=a&beside=good")
        await tab.page.get_by_text("no earlier job of this workflow was done").wait_for()
        tab.excuse(404)


async def _say(gateway: Gateway, task: Claimed, first: int, last: int) -> None:
    fence = Fence(task["task_id"], task["attempt_id"])
    events = [TaskEvent(fence, f"line {n}") for n in range(first, last + 1)]
    await append_task_events(gateway.context.verbs, events, owner=OWNER)
