"""Does the page stay quick in a slow browser? The budgets of the page itself, beside those of its server in web.py.

    python -m bench.web_browser                     the database of web.py, then an hour of a stream
    python -m bench.web_browser --minutes 2         a shorter stream
    python -m bench.web_browser --keep FOLDER       leaves the filled database there, or measures the one that is there
    python -m bench.web_browser --jobs 2000 --tasks 300 --log-lines 20000 --minutes 0.5    to try it: three minutes

A real gateway, and Chromium with its processor slowed down to a quarter. Of each page: when it is usable, the longest
task of its scripts, how much it moves while it loads. Lists, logs and graphs are scrolled for three seconds.
Then the overview stands open while jobs flow: what its heap, its nodes and its listeners grow by, and the longest task
while 50 messages a second come.
"""

import argparse
import asyncio
import os
import pickle
import re
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
import httpx
from playwright.async_api import CDPSession, Page, async_playwright

from accsd.gateway.routes.page import _files, modules_of
from bench.web import _server, gateway
from bench.web_data import LARGE, LOG_LINES, Known, fill

SLOWER = 4
SCRIPT_BYTES, LONGEST_TASK, SHIFT, FRAMES, PAN_FRAMES = 90_000, 100, 0.0, 55, 30
HEAP, LOG_HEAP = 60, 150  # MiB
_FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-extensions", "--disable-background-networking")
# Notes from the first moment of each document on.
_NOTES = """
globalThis.noted = {longest: 0, shift: 0};
new PerformanceObserver((list) => { for (const each of list.getEntries())
  noted.longest = Math.max(noted.longest, each.duration); }).observe({type: "longtask", buffered: true});
new PerformanceObserver((list) => { for (const each of list.getEntries())
  if (!each.hadRecentInput) noted.shift += each.value; }).observe({type: "layout-shift", buffered: true});
"""
# Scrolls whatever has most to scroll, a screen in a third of a second, down and up.
_SCROLL = """(seconds) => new Promise((done) => {
  const all = [document.scrollingElement, ...document.querySelectorAll("main *")];
  const spare = (each) => each.scrollHeight - each.clientHeight;
  const moved = all.filter((each) => each === document.scrollingElement
    || ["auto", "scroll"].includes(getComputedStyle(each).overflowY)).reduce((a, b) => spare(b) > spare(a) ? b : a);
  const began = performance.now();
  let last = began, frames = 0, longest = 0, down = 1;
  const step = (now) => {
    frames++;
    longest = Math.max(longest, now - last);
    moved.scrollTop += down * moved.clientHeight * (now - last) / 333;
    if (moved.scrollTop <= 0 || moved.scrollTop >= spare(moved) - 1) down = -down;
    last = now;
    if (now - began < seconds * 1000) requestAnimationFrame(step);
    else done({frames: frames / seconds, longest, spare: spare(moved)});
  };
  requestAnimationFrame(step);
})"""


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    value: float
    budget: float
    unit: str
    at_least: bool = False

    def __str__(self) -> str:
        value = round(self.value, 3)
        met = value >= self.budget if self.at_least else value <= self.budget
        shown = f"{value:,.0f}" if self.unit or self.at_least else f"{value:.3f}"
        return f"| {self.name} | {shown} {self.unit} | {self.budget:g} {self.unit} | {'yes' if met else '**no**'} |"


def scripts() -> Row:
    """Of the page that needs most, its frame included."""
    main = _files()["app/main.js"].content.decode()
    frame = modules_of("app/main.js")
    needed = [frame | modules_of(f"app/{page}") for page in re.findall(r'import\("\./(pages/\w+\.js)"\)', main)]
    most = max(sum(len(_files()[name].packed) for name in names) for names in needed)
    return Row("scripts of the largest page, packed", most, SCRIPT_BYTES, "bytes")


class Browser:
    """A tab, logged in, and slowed down."""

    def __init__(self, page: Page, devtools: CDPSession) -> None:
        self.page = page
        self.devtools = devtools
        self.messages = 0
        devtools.on("Network.eventSourceMessageReceived", self._count)

    def _count(self, _: object) -> None:
        self.messages += 1

    async def open(self, name: str, path: str, budget: float) -> list[Row]:
        """`budget`: seconds until it shows what it is about."""
        await self.page.goto(path)
        await self.page.locator("main h1").wait_for(timeout=60_000)
        usable = await self.page.evaluate("performance.now() / 1000")
        await self.page.wait_for_timeout(3000)  # what comes after it must not move it, nor hold it up
        noted = await self.page.evaluate("noted")
        return [
            Row(f"{name}: usable after", usable * 1000, budget * 1000, "ms"),
            Row(f"{name}: longest task while it loads", noted["longest"], 3 * LONGEST_TASK, "ms"),
            Row(f"{name}: layout shift", noted["shift"], SHIFT, ""),
        ]

    async def scrolled(self, name: str, least: float = FRAMES) -> list[Row]:
        await self.page.evaluate("noted.longest = 0")
        seen = await self.page.evaluate(_SCROLL, 3)
        longest = await self.page.evaluate("noted.longest")
        return [
            Row(f"{name}: frames a second, scrolled", seen["frames"], least, "", True),
            Row(f"{name}: longest task, scrolled through {seen['spare']:,.0f} px", longest, LONGEST_TASK, "ms"),
        ]

    async def unfolded(self) -> None:
        """Each step of the graph stands for itself."""
        fold = self.page.get_by_label("Fold what is alike")
        if await fold.count():
            await fold.uncheck()
            await self.page.wait_for_timeout(1000)

    async def heap(self) -> tuple[float, float, float]:
        """MiB of the heap, nodes of the document, listeners; after the garbage is gone."""
        await self.devtools.send("HeapProfiler.collectGarbage")
        metrics = {
            each["name"]: each["value"] for each in (await self.devtools.send("Performance.getMetrics"))["metrics"]
        }
        return metrics["JSHeapUsedSize"] / 2**20, metrics["Nodes"], metrics["JSEventListeners"]


@asynccontextmanager
async def browser(client: httpx.AsyncClient) -> AsyncGenerator[Browser]:
    """Logged in with the client's token."""
    program = shutil.which("chromium")
    if program is None:
        sys.exit("missing: chromium; apt-get install chromium")
    async with async_playwright() as playwright:
        chromium = await playwright.chromium.launch(executable_path=program, args=list(_FLAGS))
        try:
            context = await chromium.new_context(base_url=str(client.base_url), viewport={"width": 1440, "height": 900})
            page = await context.new_page()
            await page.add_init_script(_NOTES)
            await page.goto("/")
            await page.get_by_label("Token").fill(client.headers["Authorization"].removeprefix("Bearer "))
            await page.get_by_role("button", name="Log in").click()
            await page.locator("main h1").wait_for()
            devtools = await context.new_cdp_session(page)
            for domain in ("Performance", "Network", "HeapProfiler"):
                await devtools.send(f"{domain}.enable")
            await devtools.send("Emulation.setCPUThrottlingRate", {"rate": SLOWER})
            yield Browser(page, devtools)
        finally:
            await chromium.close()


async def show_pages(tab: Browser, known: Known) -> None:
    for row in [scripts(), *await tab.open("overview", "/", 2.4)]:
        print(row, flush=True)
    for name, path, budget in (
        ("jobs", "/jobs", 2.0),
        ("fleet, 50 nodes", "/fleet", 2.8),
        ("job of 4 steps", f"/jobs/{known.past}", 2.4),
        ("job of many steps, running", f"/jobs/{known.large_running}", 4.8),
        ("log", f"/jobs/{known.past}?tab=log&step=render", 2.4),
    ):
        for row in [*await tab.open(name, path, budget), *await tab.scrolled(name)]:
            print(row, flush=True)
    print(Row("log: heap", (await tab.heap())[0], LOG_HEAP, "MiB"), flush=True)
    name = "graph of many steps, unfolded"
    rows = await tab.open(name, f"/jobs/{known.large_running}?tab=graph", 4.8)
    await tab.unfolded()
    for row in [*rows, *await tab.scrolled(name, PAN_FRAMES)]:
        print(row, flush=True)


# While jobs flow


async def work(connection: asyncpg.Connection, jobs_a_second: float) -> None:
    """Jobs of one step, submitted, claimed and done at this pace."""
    await connection.execute("SELECT accs.register_node('flow')")
    pause, due = 1 / jobs_a_second, time.monotonic()
    while True:
        await connection.fetch(
            "SELECT job_id FROM accs.submit_jobs(ARRAY(SELECT id FROM workflows WHERE name = 'flow'))"
        )
        claimed = await connection.fetch(
            "SELECT task_id, attempt_id FROM accs.claim_tasks('flow', 'flow', 'flow', 10, $1, true)",
            timedelta(minutes=5),
        )
        await connection.fetch(
            "SELECT answer FROM accs.finish_tasks($1, $2, 'flow')",
            [each[0] for each in claimed],
            [each[1] for each in claimed],
        )
        due += pause
        await asyncio.sleep(max(0.0, due - time.monotonic()))


@asynccontextmanager
async def flow(url: str, jobs_a_second: float) -> AsyncGenerator[None]:
    connection = await asyncpg.connect(url)
    steps = '[{"key": "a", "service": "flow"}]'
    await connection.execute("INSERT INTO workflows (name, steps) VALUES ('flow', $1) ON CONFLICT DO NOTHING", steps)
    flowing = asyncio.create_task(work(connection, jobs_a_second))
    try:
        yield
        if flowing.done():
            flowing.result()
    finally:
        flowing.cancel()
        await asyncio.gather(flowing, return_exceptions=True)
        await connection.close()


async def show_stream(tab: Browser, url: str, minutes: float) -> None:
    await tab.open("overview", "/", 2.4)
    async with flow(url, 3):
        await asyncio.sleep(10)  # what is kept is there now
        before, began, messages = await tab.heap(), time.monotonic(), tab.messages
        await asyncio.sleep(minutes * 60)
        pace = (tab.messages - messages) / (time.monotonic() - began)
        after = await tab.heap()
    print(Row(f"overview: heap after {minutes:g} min of {pace:.0f} messages a second", after[0], HEAP, "MiB"))
    print(
        f"  it grew by {after[0] - before[0]:.1f} MiB, {after[1] - before[1]:.0f} nodes, "
        f"{after[2] - before[2]:.0f} listeners"
    )
    await tab.open("jobs", "/jobs", 2.0)
    async with flow(url, 25):
        await asyncio.sleep(2)
        await tab.page.evaluate("noted.longest = 0")
        began, messages = time.monotonic(), tab.messages
        await asyncio.sleep(20)
        pace = (tab.messages - messages) / (time.monotonic() - began)
        longest = await tab.page.evaluate("noted.longest")
    print(Row(f"jobs: longest task while {pace:.0f} messages a second come", longest, LONGEST_TASK, "ms"), flush=True)


async def show(url: str, folder: Path, asked: argparse.Namespace) -> None:
    store, noted = folder / "objects", folder / "known.pickle"
    if not noted.exists():
        store.mkdir(exist_ok=True)
        noted.write_bytes(
            pickle.dumps(await fill(url, store, asked.jobs, large=asked.tasks, log_lines=asked.log_lines))
        )
    known: Known = pickle.loads(noted.read_bytes())
    print(
        f"\n{datetime.now(UTC):%Y-%m-%d %H:%M}, processor slowed down {SLOWER} times, load {os.getloadavg()[0]:.1f}\n"
    )
    print("| | measured | budget | met |\n|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory(prefix="accsd-bench-") as name:
        async with gateway(url, Path(name), store) as (_, client), browser(client) as tab:
            await show_pages(tab, known)
            if asked.minutes:
                await show_stream(tab, url, asked.minutes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1_000_000, help="ended jobs (default: %(default)s)")
    parser.add_argument("--tasks", type=int, default=LARGE, help="of the large job (default: %(default)s)")
    parser.add_argument("--log-lines", type=int, default=LOG_LINES, help="of the log (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=60, help="of the stream; 0: not at all (default: %(default)s)")
    parser.add_argument("--keep", type=Path, help="a folder that keeps the filled database")
    asked = parser.parse_args()
    with _server(asked.keep) as (server, folder):
        asyncio.run(show(server.url, folder, asked))


if __name__ == "__main__":
    sys.exit(main())
