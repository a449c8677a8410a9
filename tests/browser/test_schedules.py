"""Schedules on the page: made with a preview, skipped, changed, paused and resumed, backfilled; and tokens."""

import re

from accsd.db.pool import Database
from tests.support.browser import browsing
from tests.support.cluster import Connection
from tests.support.factory import pass_time, step, workflow
from tests.support.gateway import Gateway
from tests.support.library import opened
from tests.support.schedules import all_roles


async def _work(db_url: str) -> None:
    """What builders would do meanwhile."""
    async with opened(db_url) as db:
        await _settle(db)


async def _settle(db: Database) -> None:
    await all_roles(db)


async def test_a_schedule_is_made_previewed_and_held_to_its_word(conn: Connection, gateway: Gateway, db_url: str):
    await workflow(conn, step("copy"), name="backup")
    async with browsing(gateway) as tab:
        await tab.log_in("operate")
        await tab.open("/schedules")
        page = tab.page
        await page.get_by_role("button", name="New schedule").click()
        await page.get_by_label("Name", exact=True).fill("nightly")
        await page.get_by_label("Workflow that it starts").fill("backup")
        await page.get_by_label("Expression").fill("30 2 * *")
        await page.get_by_text("a cron expression has 5 fields").wait_for()
        await page.get_by_label("Expression").fill("30 2 * * *")
        await page.get_by_label("Time zone").last.fill("Europe/Berlin")
        await page.get_by_text("At 02:30 every day, Europe/Berlin.").wait_for()
        tab.forgive("422")
        await page.get_by_role("button", name="Make it").click()
        await page.get_by_role("heading", name="nightly").wait_for()
        await _work(db_url)
        await page.get_by_role("table", name="Next due times").get_by_role("button", name="Skip").first.click()
        sheet = page.get_by_role("dialog")
        await sheet.get_by_label("Reason, for the history").fill("a holiday")
        await sheet.get_by_role("button", name="Skip", exact=True).click()
        await page.get_by_text("will be skipped, by operate: a holiday").wait_for()

        await page.get_by_role("button", name="Edit").click()
        await page.get_by_label("Expression").fill("45 * * * *")
        await page.get_by_role("button", name="Save").click()
        await page.get_by_text(re.compile("At minute 45 of every hour, Europe/Berlin")).first.wait_for()

        await page.get_by_role("button", name="Pause").click()
        await sheet.get_by_role("button", name="Pause", exact=True).click()
        await page.locator(".head .state").get_by_text("paused").wait_for()
        await pass_time(conn, 3 * 3600)
        await _work(db_url)
        await page.get_by_role("button", name="Resume").click()
        await sheet.get_by_label("Of what this pause has skipped, run").select_option("one")
        await sheet.get_by_text("Of what the pause skipped 1 run now.").wait_for()
        await sheet.get_by_role("button", name="Resume", exact=True).click()
        ledger = page.get_by_role("table", name="Ledger")
        await ledger.get_by_text("ran when its pause ended").wait_for()
        assert await ledger.get_by_text("skipped: the schedule was paused").count() >= 1

        await page.get_by_role("button", name="Backfill").click()
        await sheet.get_by_role("button", name="Show what would run").click()
        await sheet.get_by_text(re.compile("would run, .* are left alone")).wait_for()
        await sheet.get_by_role("button", name=re.compile(r"Run \d+")).click()
        await page.get_by_role("table", name="Backfills").wait_for()


async def test_a_token_is_shown_once_and_revoked(gateway: Gateway):
    async with browsing(gateway) as tab:
        await tab.log_in("admin")
        await tab.open("/system/tokens")
        page = tab.page
        await page.get_by_label("Name", exact=True).fill("grafana")
        await page.get_by_role("button", name="Make it").click()
        sheet = page.get_by_role("dialog")
        text = await sheet.locator("code").first.inner_text()
        assert (await gateway.get("/me", token=text)).json()["scopes"] == ["read"]
        await sheet.get_by_role("button", name="I have it").click()
        await sheet.wait_for(state="detached")
        assert text not in await page.content()
        await page.get_by_role("row", name=re.compile("grafana")).get_by_role("button", name="Revoke").click()
        await sheet.get_by_role("button", name="Revoke", exact=True).click()
        await page.get_by_role("row", name=re.compile("grafana")).get_by_text("revoked").wait_for()
        assert (await gateway.get("/me", token=text)).status_code == 401
        await tab.open("/system/audit")
        await page.get_by_role("button", name="create_token").first.wait_for()
