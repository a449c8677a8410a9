"""One action on many: what the preview froze is what is done, by whichever gateway; groups of dead letters."""

import pytest

from accsd.gateway.operations import OperationsWorker
from tests.support.browser import Tab, browsing
from tests.support.cluster import Connection
from tests.support.factory import (
    claim,
    fail,
    finish,
    node,
    pass_time,
    start,
    started,
    step,
    submit_to,
    workflow,
)
from tests.support.gateway import Gateway

OPEN = 7  # jobs that have not failed: a retry of them is refused


async def _all_failed(conn: Connection, count: int) -> None:
    for done in range(0, count, 500):
        claimed = await claim(conn, min(500, count - done))
        await start(conn, *claimed)
        await fail(conn, *claimed, permanent=True)


async def _is_done_to_all_that_match(tab: Tab, conn: Connection, gateway: Gateway, count: int) -> None:
    await node(conn)
    flaky = await workflow(conn, step("a"), name="flaky")
    for _ in range(0, count, 1000):
        await conn.fetch("SELECT accs.submit_jobs($1)", [flaky] * 1000)
    await _all_failed(conn, count - OPEN)
    await tab.log_in("operate")
    await tab.open("/jobs?q=workflow:flaky")
    await tab.page.get_by_label("Select all that are shown").check()
    await tab.page.get_by_role("button", name="Select everything that matches workflow:flaky").click()
    await tab.page.get_by_role("region", name="What is selected").get_by_role("button", name="Retry").click()
    sheet = tab.page.get_by_role("dialog")
    await sheet.get_by_text(f"Retry {count:,} jobs. What is newer").wait_for()
    newer = await submit_to(conn, flaky, priority=1)
    await _all_failed(conn, 1)
    await sheet.get_by_label("Reason").fill("the licence server is back")
    await sheet.get_by_role("button", name=f"Retry {count:,} jobs").click()
    await sheet.get_by_text(f"0 of {count:,} so far").wait_for()
    dies = OperationsWorker(gateway.context.reads, gateway.context.verbs)
    await dies.run_once()
    await sheet.get_by_text(f"500 of {count:,} so far").wait_for()
    await pass_time(conn, 61)  # its lease is over: another gateway goes on
    other = OperationsWorker(gateway.context.reads, gateway.context.verbs)
    while (await other.run_once()).more:
        pass
    await sheet.get_by_text(f"done: {count - OPEN:,} accepted").wait_for()
    refused = sheet.get_by_label("Refusals", exact=True).get_by_role("table").locator("tbody tr")
    assert await refused.count() == OPEN
    assert await conn.fetchval("SELECT status FROM jobs WHERE id = $1", newer) == "error"
    assert await conn.fetchval("SELECT count(*) FROM jobs WHERE status = 'running'") == count
    await sheet.get_by_role("link", name="The operation").click()
    await tab.page.get_by_role("heading", name="retry").wait_for()
    await tab.page.get_by_text("the licence server is back").wait_for()


async def test_all_that_match_are_retried_with_progress_and_refusals_by_job(conn: Connection, gateway: Gateway):
    """Flow 6, with 1,000 jobs: the worker that began dies, another one goes on."""
    async with browsing(gateway) as tab:
        await _is_done_to_all_that_match(tab, conn, gateway, 1_000)


@pytest.mark.soak
async def test_five_thousand_that_match_are_retried(conn: Connection, gateway: Gateway):
    """Flow 6, at length."""
    async with browsing(gateway) as tab:
        tab.page.set_default_timeout(300_000)
        await _is_done_to_all_that_match(tab, conn, gateway, 5_000)


async def test_jobs_keep_their_place_and_new_ones_wait(conn: Connection, gateway: Gateway):
    media = await workflow(conn, step("a"), name="media")
    await node(conn)
    first = await submit_to(conn, media, options={"shot": "010"})
    await submit_to(conn, media, options={"shot": "020"})
    async with browsing(gateway) as tab:
        await tab.log_in("read")
        await tab.open("/jobs")
        rows = tab.page.get_by_label("Jobs", exact=True).locator("tbody tr")
        await tab.page.get_by_text("shot 010").wait_for()
        await rows.first.hover()
        [claimed] = await started(conn)
        await submit_to(conn, media, options={"shot": "030"})
        await finish(conn, claimed)
        await tab.page.get_by_role("button", name="1 new: show it").wait_for()
        row = tab.page.locator(f'tr[data-key="{first}"]')
        await row.get_by_text("done").wait_for()
        assert await rows.count() == 2
        await tab.page.get_by_role("button", name="1 new: show it").click()
        await tab.page.get_by_text("shot 030").wait_for()
        assert await rows.count() == 3
        await tab.page.get_by_label("Filter jobs").fill("status:broken")
        await tab.page.keyboard.press("Enter")
        await tab.page.get_by_role("alert").get_by_text('"broken" is no state of a job').wait_for()
        tab.excuse(422)


async def test_of_a_group_one_is_sent_first_and_the_rest_after_it(conn: Connection, gateway: Gateway):
    """Flow 7."""
    await node(conn)
    media = await workflow(conn, step("a", max_attempts=1), name="media")
    for number in range(4):
        await submit_to(conn, media)
        message = "upload was refused" if number == 3 else f"frame {number} is broken"
        await fail(conn, *await started(conn), message=message)
    async with browsing(gateway) as tab:
        await tab.log_in("operate")
        await tab.open("/dead")
        group = tab.page.get_by_role("region", name="render a boom").filter(has_text="frame # is broken")
        await group.get_by_role("button", name="One first").click()
        sheet = tab.page.get_by_role("dialog")
        await sheet.get_by_role("button", name="Redrive one").click()
        await group.get_by_text("Wait for what comes of it").wait_for()
        await finish(conn, *await started(conn))
        await group.get_by_text("It went well: the others may follow").wait_for()
        await group.get_by_role("button", name="Redrive the other 2").click()
        await sheet.get_by_role("button", name="Redrive 2 dead letters").click()
        await sheet.get_by_text("done: 2 accepted").wait_for()
        await sheet.get_by_role("button", name="Close").click()
        other = tab.page.get_by_role("region", name="render a boom").filter(has_text="upload was refused")
        await other.get_by_role("button", name="Dismiss").click()
        await sheet.get_by_role("button", name="Dismiss 1 dead letter").click()
        await sheet.get_by_text("done: 1 accepted").wait_for()
        await sheet.get_by_role("button", name="Close").click()
        await other.wait_for(state="detached")
        await tab.page.get_by_role("link", name="Settled").click()
        await tab.page.get_by_text("dismissed").wait_for()
        assert await tab.page.get_by_text("sent again").count() == 3
    assert await conn.fetchval("SELECT count(*) FROM jobs WHERE status = 'running'") == 2


async def test_a_form_is_made_of_the_schema_and_says_what_is_wrong(conn: Connection, gateway: Gateway):
    media = await workflow(conn, step("a"), name="media")
    schema = {
        "type": "object",
        "required": ["shot"],
        "properties": {
            "shot": {"type": "string", "pattern": "^[0-9]{3}$", "title": "Shot"},
            "res": {"enum": ["2k", "4k"], "default": "4k"},
            "frames": {"type": "integer"},
        },
    }
    await conn.execute("UPDATE workflows SET options_schema = $1 WHERE id = $2", schema, media)
    async with browsing(gateway) as tab:
        await tab.log_in("submit")
        await tab.open("/workflows/media")
        await tab.page.get_by_label("Shot").fill("abc")
        await tab.page.get_by_label("frames").fill("12")
        await tab.page.get_by_role("button", name="Submit").click()
        await tab.page.get_by_role("alert").wait_for()
        tab.excuse(422)
        await tab.page.get_by_label("Shot").fill("010")
        await tab.page.get_by_role("button", name="Submit").click()
        await tab.page.locator(".head .state").wait_for()
    assert await conn.fetchval("SELECT options FROM jobs") == {"shot": "010", "res": "4k", "frames": 12}
