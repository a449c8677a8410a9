"""Every page, full of a studio's day: nothing that axe calls a barrier, and what axe can't see: the keyboard, small
screens, large letters, colours that the system chooses, and eyes that motion makes ill.

A page that is new in the gateway's list is looked at by itself. What its address names stands in tests/support/studio.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import pytest_asyncio
from playwright.async_api import Route

from accsd.gateway.routes.page import PAGES
from tests.support.browser import Tab, browsing
from tests.support.cluster import TestServer
from tests.support.gateway import serving
from tests.support.studio import ZONE, Studio, furnish

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("studio"), pytest.mark.timeout(600)]

HERE = Path(__file__).parent
AXE = (HERE / "vendor" / "axe.js").read_text(encoding="utf-8")
LOOKS = (HERE / "looks.js").read_text(encoding="utf-8")
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
MOST_SHIFT = 0.01  # of the 0.1 that counts as good
_PARTS = ".tabs a[href]"  # parts of a page that have addresses of their own


class Full(NamedTuple):
    """A browser, logged in, before a gateway whose database has everything."""

    tab: Tab
    studio: Studio

    @property
    def addresses(self) -> list[str]:
        return [address for page in PAGES for address in self.studio.addresses(page)]

    @property
    def one_of_each(self) -> list[str]:
        return [self.studio.addresses(page)[0] for page in PAGES]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def full(server: TestServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Full]:
    folder = tmp_path_factory.mktemp("objects")
    async with server.cloned() as url:
        studio = await furnish(url, folder)
        async with serving(url, folder=folder, hears=True) as gateway, browsing(gateway, timezone_id=ZONE) as tab:
            await tab.page.add_init_script(LOOKS)
            await tab.log_in("admin")
            yield Full(tab, studio)


async def look(tab: Tab, address: str) -> None:
    await tab.open(address)
    await tab.settle()


async def ask(tab: Tab, what: str, *given: object) -> Any:
    return await tab.page.evaluate(f"given => looks.{what}(...given)", list(given))


Trouble = dict[str, list[str]]  # what is wrong, by address


async def barriers(tab: Tab, addresses: list[str]) -> Trouble:
    """What axe finds at the addresses, and in the parts of each page that have addresses of their own."""
    trouble: Trouble = {}
    known = list(addresses)
    for address in known:  # which grows
        await look(tab, address)
        trouble[address] = await _barriers_here(tab)
        known += [part for part in await _parts(tab) if part not in known]
    return trouble


async def _barriers_here(tab: Tab) -> list[str]:
    await tab.page.evaluate(AXE)
    return await ask(tab, "barriers", RULES)


async def _parts(tab: Tab) -> list[str]:
    return await tab.page.eval_on_selector_all(_PARTS, "links => links.map(link => link.pathname + link.search)")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def seen(full: Full) -> dict[str, Trouble]:
    """What is wrong on one address of each page, by what was looked for. Opening a page costs more than a look."""
    tab, page = full.tab, full.tab.page
    trouble: dict[str, Trouble] = {"barriers": {}, "keyboard": {}, "moving": {}}
    parts: list[str] = []
    for address in full.one_of_each:
        await look(tab, address)
        trouble["keyboard"][address] = await _not_reached(tab)
        await page.emulate_media(reduced_motion="reduce")
        trouble["moving"][address] = await ask(tab, "moving")
        await page.emulate_media(reduced_motion="no-preference")
        trouble["barriers"][address] = await _barriers_here(tab)
        parts += await _parts(tab)
    more = [part for part in dict.fromkeys(parts) if part not in trouble["barriers"]]
    trouble["barriers"] |= await barriers(tab, more)
    return trouble


def expect_none(trouble: Trouble) -> None:
    where: dict[str, list[str]] = {}
    for address, found in trouble.items():
        for each in found:
            where.setdefault(each, []).append(address)
    told = [f"{each}\n    at {', '.join(addresses[:4])} ({len(addresses)})" for each, addresses in where.items()]
    assert not told, "\n".join(told)


async def prefer(tab: Tab, **chosen: str) -> None:
    """What a person has chosen, as this browser keeps it."""
    await tab.page.evaluate(
        "chosen => localStorage.setItem('accsd.prefs',"
        " JSON.stringify({...JSON.parse(localStorage.getItem('accsd.prefs') ?? '{}'), ...chosen}))",
        chosen,
    )


async def test_axe_finds_no_barrier_on_any_page(seen: dict[str, Trouble]):
    expect_none(seen["barriers"])


@pytest.mark.parametrize("width", [1440, 360])
async def test_nothing_moves_while_a_page_arrives_piece_by_piece(full: Full, width: int):
    page = full.tab.page

    async def late(route: Route) -> None:
        await asyncio.sleep(0.3)
        await route.continue_()

    await page.set_viewport_size({"width": width, "height": 900})
    await page.route("**/api/v1/fleet/{timeline,energy}*", late)
    await page.route("**/api/v1/overview/*", late)
    try:
        for address in ("/", "/fleet", "/fleet/gpu-1", "/schedules/nightly-backup"):
            await look(full.tab, address)
            assert await ask(full.tab, "shift") < MOST_SHIFT, address
    finally:
        await page.unroute_all(behavior="wait")
        await page.set_viewport_size({"width": 1440, "height": 900})


async def test_narrow_things_have_room_for_what_is_in_them(full: Full):
    await look(full.tab, "/schedules")
    widths = "marks => marks.map(mark => mark.getBoundingClientRect().width)"
    assert set(await full.tab.page.eval_on_selector_all("td .strip i", widths)) == {10}
    await look(full.tab, "/fleet")
    names = full.tab.page.get_by_role("table", name="Energy").locator("tbody a")
    await names.first.evaluate("link => { link.textContent = 'workstation-in-the-attic'; }")
    assert await ask(full.tab, "cut", "main .grid .scrolls") == []


@pytest.mark.soak
@pytest.mark.parametrize("density", ["compact", "comfortable"])
@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_axe_finds_no_barrier_in_any_theme_and_density(full: Full, theme: str, density: str):
    await prefer(full.tab, theme=theme, density=density)
    expect_none(await barriers(full.tab, full.addresses))


@pytest.mark.soak
@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_axe_finds_no_barrier_where_nothing_is_yet(server: TestServer, theme: str):
    async with server.cloned() as url, serving(url, hears=True) as gateway, browsing(gateway) as tab:
        await tab.page.add_init_script(LOOKS)
        await tab.log_in("admin")
        await prefer(tab, theme=theme)
        expect_none(await barriers(tab, [page for page in PAGES if "{" not in page]))


async def test_the_keyboard_reaches_everything_and_shows_where_it_is(seen: dict[str, Trouble]):
    expect_none(seen["keyboard"])


async def _not_reached(tab: Tab) -> list[str]:
    """What the tab key does not reach, or reaches without showing it."""
    wanted: list[str] = await ask(tab, "stops")
    seen: set[int] = set()
    shown: set[str] = set()  # a field for a date has several stops, some of them within it
    hidden: list[str] = []
    for _ in range(len(wanted) + 20):
        await tab.page.keyboard.press("Tab")
        at = await ask(tab, "focus")
        if at is None:
            if seen:
                break  # it has been round the page
            continue
        if at["stop"] is not None:
            seen.add(int(at["stop"]))
        if at["shows"]:
            shown.add(at["name"])
        elif at["name"] not in shown:
            hidden.append(f"shows no focus: {at['name']}")
    return hidden[:5] + [f"is not reached: {name}" for n, name in enumerate(wanted) if n not in seen][:5]


async def test_no_page_is_wider_than_a_small_screen(full: Full):
    """WCAG 1.4.10: 1280 by 1024 at 400 %, and a phone."""
    trouble: Trouble = {}
    try:
        for address in full.one_of_each:
            await full.tab.page.set_viewport_size({"width": 320, "height": 256})
            await look(full.tab, address)
            trouble[address] = await ask(full.tab, "wide")
            await full.tab.page.set_viewport_size({"width": 360, "height": 740})
            await full.tab.settle()
            trouble[address] += await ask(full.tab, "wide")
    finally:
        await full.tab.page.set_viewport_size({"width": 1440, "height": 900})
    expect_none(trouble)


async def test_bars_keep_their_colours_where_the_system_chooses_all_others(full: Full):
    await full.tab.page.emulate_media(forced_colors="active")
    try:
        await look(full.tab, f"/jobs/{full.studio.jobs['failed']}")
        fills = await ask(full.tab, "fills")
        assert {"running", "boot", "capacity", "backoff"} <= fills.keys()
        assert len(set(fills.values())) == len(fills)
    finally:
        await full.tab.page.emulate_media(forced_colors="none")


async def test_nothing_moves_for_who_does_not_want_motion(seen: dict[str, Trouble]):
    expect_none(seen["moving"])
