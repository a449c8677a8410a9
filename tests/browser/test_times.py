"""Clocks and looks that a person chooses: axes, lists and hovers say the same time."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from tests.support.browser import Tab, browsing
from tests.support.cluster import Connection
from tests.support.factory import NODE, node, step, workflow
from tests.support.gateway import Gateway

KOLKATA = "Asia/Kolkata"
BERLIN = "Europe/Berlin"
# What the axis says of a stretch of time: the word of each mark, and the moment where it stands.
_TICKS = """async ([from, to]) => {
  const home = document.querySelector("script[type=module]").src.replace("main.js", "");
  const {ticks} = await import(home + "ui/axis.js");
  return ticks(Date.parse(from), Date.parse(to));
}"""


async def _choose(tab: Tab, zone: str) -> None:
    await tab.open("/preferences")
    await tab.page.get_by_label("Time zone").last.fill(zone)
    await tab.page.get_by_role("button", name="Use it").click()
    await tab.page.get_by_text(f"Times are those of {zone}").wait_for()


async def _marks(tab: Tab, begin: datetime, end: datetime) -> list[tuple[datetime, str]]:
    found = await tab.page.evaluate(_TICKS, [begin.isoformat(), end.isoformat()])
    return [(datetime.fromtimestamp(at / 1000, UTC), word) for at, word in found]


def _words(marks: list[tuple[datetime, str]], zone: str) -> list[str]:
    """As a clock on the wall there shows these moments."""
    return [at.astimezone(ZoneInfo(zone)).strftime("%H:%M") for at, _ in marks]


async def test_axes_lists_and_hovers_agree_in_every_zone(conn: Connection, gateway: Gateway):
    """Flow 14."""
    await node(conn, render=1)
    await workflow(conn, step("cut"), name="media")
    await conn.execute(
        "INSERT INTO schedules (name, schedule_kind, schedule_expr, timezone, workflow)"
        " VALUES ('late', 'cron', '0 23 * * *', $1, 'media')",
        BERLIN,
    )
    async with browsing(gateway, timezone_id="America/New_York", color_scheme="light") as tab:
        await tab.log_in("read")
        await _choose(tab, KOLKATA)
        await tab.open("/schedules/late")
        here = tab.page.get_by_role("table", name="Next due times").locator("td:nth-child(2) time").first
        due = datetime.fromisoformat(str(await here.get_attribute("datetime")))
        there = due.astimezone(ZoneInfo(KOLKATA))
        # half an hour beside everybody: 23:00 in Berlin is 03:30 there, in winter
        assert f"{there:%H:%M:%S} GMT+5:30" in await here.inner_text()
        hover = str(await here.get_attribute("title")).splitlines()
        assert hover[0] == await here.inner_text()
        assert datetime.fromisoformat(hover[1]) == due
        assert "23:00:00 CE" in await tab.page.locator("td .mono").first.inner_text()

        day = await _marks(tab, datetime(2026, 11, 18, tzinfo=UTC), datetime(2026, 11, 19, tzinfo=UTC))
        assert [word for _, word in day if ":" in word] == [each for each in _words(day, KOLKATA) if each != "00:00"]
        assert all(at.minute == 30 for at, _ in day)
        await tab.open(f"/fleet/{NODE}")
        assert "Asia/Kolkata" in str(await tab.page.locator(".axis").first.get_attribute("title"))

        await _choose(tab, BERLIN)
        for night in (datetime(2026, 10, 24, 21, tzinfo=UTC), datetime(2027, 3, 27, 21, tzinfo=UTC)):
            marks = await _marks(tab, night, night.replace(day=night.day + 1, hour=5))
            shown = [word for _, word in marks if ":" in word]
            assert shown == [each for each in _words(marks, BERLIN) if each != "00:00"]
            assert [at for at, _ in marks] == sorted({at for at, _ in marks})
            assert ("02:00" in shown) == (night.month == 10)  # in March the clock goes from 02:00 to 03:00


async def test_a_theme_a_density_and_a_clock_are_kept(gateway: Gateway):
    """Flow 14."""
    async with browsing(gateway, color_scheme="light") as tab:
        await tab.log_in("read")
        await tab.open("/preferences")
        root = tab.page.locator("html")
        await tab.page.get_by_label("dark").check()
        await tab.page.get_by_label("comfortable").check()
        await tab.page.get_by_label("12 hours").check()
        await tab.page.get_by_label("signs only").check()
        await tab.open("/system")
        assert await root.get_attribute("data-theme") == "dark"
        assert await root.get_attribute("data-density") == "comfortable"
        assert await root.evaluate("each => getComputedStyle(document.body).backgroundColor") == "rgb(15, 20, 25)"
        assert await tab.page.locator(".rail").evaluate("each => each.getBoundingClientRect().width") < 60
        clock = tab.page.locator("dt", has_text="database's clock").locator("+ dd")
        shown = (await clock.inner_text()).lower()
        assert "am" in shown or "pm" in shown
