"""A job that waits for a machine that sleeps: the page says why in the words of the command, and wakes it."""

from pathlib import Path

import pytest

from tests.support.browser import Tab, browsing
from tests.support.cli import Cli
from tests.support.cluster import Connection
from tests.support.factory import finish, node, pass_time, started, step, submit_to, workflow
from tests.support.gateway import Gateway

NAME = "gpu-1"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """One that wakes, or says so."""
    path = tmp_path / "wake.sh"
    path.write_text("#!/bin/sh\nexit 0\n")
    path.chmod(0o700)
    return path


async def _asleep(conn: Connection, script: Path) -> None:
    """A machine that goes to sleep, and can be woken by a script that really runs."""
    await node(conn, NAME, {"gpu": True}, render=1)
    await conn.execute("UPDATE nodes SET wake_method = 'script', script = $1 WHERE name = $2", str(script), NAME)
    assert await conn.fetchval("SELECT accs.node_leaves($1, 'sleep', 'nothing waits for it')", NAME) == "accepted"


async def _segments(tab: Tab) -> list[str | None]:
    return [await each.get_attribute("data-kind") for each in await tab.page.locator("main .lane-bar > div").all()]


async def test_why_is_told_as_by_the_command_and_waking_is_seen_step_by_step(
    conn: Connection, gateway: Gateway, db_url: str, script: Path
):
    """Flow 5."""
    await _asleep(conn, script)
    flow = await workflow(conn, step("frame", requires={"gpu": True}), name="media")
    job = await submit_to(conn, flow)
    told = [
        each["text"]
        for each in (await Cli(db_url).process("why", str(job), "-o", "json")).ends(0).json
        if each["task_id"]
    ]
    assert told
    assert told[0] in (await Cli(db_url).process("why", str(job))).ends(0).out
    async with browsing(gateway) as tab:
        await tab.log_in("operate")
        shown = tab.page.get_by_role("table", name="Waiting").locator("td.cut span")
        await shown.wait_for()
        assert await shown.get_attribute("title") == told[0]

        await tab.open(f"/fleet/{NAME}")
        await pass_time(conn, 3600)
        await tab.page.get_by_role("button", name="Wake", exact=True).click()
        sheet = tab.page.get_by_role("dialog")
        await sheet.get_by_text("It is called by script, now.").wait_for()
        assert await sheet.get_by_text(f"accsd nodes wake {NAME}").is_visible()
        await sheet.get_by_role("button", name="Wake", exact=True).click()
        await tab.page.get_by_role("status").get_by_text(f"{NAME} was called by script").wait_for()
        head = tab.page.locator(".head .state")
        await head.get_by_text("booting").wait_for()
        await pass_time(conn, 40)
        await node(conn, NAME, {"gpu": True}, render=1)
        await head.get_by_text("awake, idle").wait_for()
        (task,) = await started(conn, on=NAME)
        await head.get_by_text("awake, busy").wait_for()
        await tab.page.locator("main .lane-bar [data-kind=busy]").wait_for()
        assert {"asleep", "booting", "busy"} <= set(await _segments(tab))

        await tab.open(f"/jobs/{job}")
        for kind in ("asleep", "boot", "running"):
            await tab.page.locator(f"main .explain [data-kind={kind}]").first.wait_for()
        await pass_time(conn, 20)
        await finish(conn, task)
        await tab.page.locator(".head .state").get_by_text("done").wait_for()


async def test_a_machine_that_stays_awake_says_why_in_its_own_words(conn: Connection, gateway: Gateway):
    """The test of sleep and wake asks first, and ends with the refusal."""
    await node(conn, NAME, render=1)
    await conn.execute("UPDATE nodes SET wake_method = 'wol', mac = '02:00:00:00:00:01' WHERE name = $1", NAME)
    async with browsing(gateway) as tab:
        await tab.log_in("operate")
        await tab.open(f"/fleet/{NAME}")
        await tab.page.get_by_role("button", name="Test sleep and wake").click()
        await tab.page.get_by_text("accsd doctor --node gpu-1 --cycle").wait_for()
        await tab.page.get_by_role("button", name="Close").click()
        await tab.page.get_by_role("button", name="Drain").click()
        sheet = tab.page.get_by_role("dialog")
        await sheet.get_by_label("Reason, for the history").fill("a new fan")
        await sheet.get_by_role("button", name="Drain", exact=True).click()
        await tab.page.locator(".head .state").get_by_text("drained").wait_for()
        await tab.page.get_by_text("a new fan").first.wait_for()


async def test_a_rehearsal_tells_who_would_be_woken_and_when_jobs_would_end(
    conn: Connection, gateway: Gateway, script: Path
):
    await _asleep(conn, script)
    await conn.execute("UPDATE accs.power SET latency = '40 s' WHERE node = $1", NAME)
    await workflow(conn, step("frame", requires={"gpu": True}), name="media")
    async with browsing(gateway) as tab:
        await tab.log_in("read")
        await tab.open("/workflows/media?tab=rehearsal&count=3")
        await tab.page.get_by_label("frame").fill("60")
        await tab.page.get_by_role("button", name="Rehearse").click()
        told = tab.page.locator(".rehearsed")
        await told.get_by_text("The 3 jobs would begin at").wait_for()
        assert "in 3m 40s." in await told.inner_text(), "it is woken, and has one slot"
        assert f"1 machine would be woken for them: {NAME}." in await told.inner_text()
        assert (await told.get_by_role("row").all_inner_texts())[1].split("\t")[:3] == [NAME, "3", "1"]
    assert await conn.fetchval("SELECT count(*) FROM jobs") == 0
