"""A real browser before a real gateway: Debian's Chromium, which may reach this machine and no other.

async with browsing(gateway) as tab:
    await tab.log_in("operate")
    await tab.open("/jobs")

What a page must never do fails the test when the block ends: an error in the console, a refused request that it did not
ask for, a report of the content policy, a request to another host.
"""

import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from playwright.async_api import ConsoleMessage, Page, Request, async_playwright

from tests.support.eventually import eventually
from tests.support.gateway import Gateway

_FLAGS = (
    "--no-sandbox",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-default-apps",
    "--no-first-run",
    "--disable-extensions",
    "--disable-gpu",
    "--force-color-profile=srgb",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)


class Tab:
    """A page of the browser, and what it did wrong."""

    def __init__(self, page: Page, gateway: Gateway) -> None:
        self.page = page
        self.gateway = gateway
        self.faults: list[str] = []
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.faults.append(f"error of a script: {error}"))
        page.on("request", self._see)
        self._under_way: set[Request] = set()
        page.on("requestfinished", self._has_ended)
        page.on("requestfailed", self._has_ended)

    async def log_in(self, scope: str) -> None:
        await self.page.goto(self.gateway.url)
        await self.page.get_by_label("Token").fill(await self.gateway.token(scope))
        await self.page.get_by_role("button", name="Log in").click()
        await self.page.get_by_text("● live").wait_for()

    async def open(self, path: str) -> None:
        await self.page.goto(f"{self.gateway.url}{path}")
        await self.page.locator("main h1").wait_for()

    async def another(self) -> "Tab":
        """One more page of the same browser, with the same session. What it does wrong is told here."""
        tab = Tab(await self.page.context.new_page(), self.gateway)
        tab.faults = self.faults
        return tab

    def forgive(self, text: str) -> None:
        """What the test has brought about itself: a browser complains of every answer that is no 2xx."""
        assert any(text in fault for fault in self.faults), f"nothing says {text}: {self.faults}"
        self.faults[:] = [fault for fault in self.faults if text not in fault]

    async def read(self, script: str) -> Any:
        """What a script finds; modules of the page are at `/static/test/app/`."""
        return await self.page.evaluate(script)

    def excuse(self, status: int) -> None:
        """A refusal that a test brings about on purpose: browsers complain of each in the console."""
        words = f"the server responded with a status of {status} "
        assert any(words in fault for fault in self.faults), f"nothing was answered with {status}: {self.faults}"
        self.faults[:] = [fault for fault in self.faults if words not in fault]

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.faults.append(f"{message.type} in the console: {message.text}")

    def _see(self, request: Request) -> None:
        if "/stream?" not in request.url:  # which never ends
            self._under_way.add(request)
        if not request.url.startswith((self.gateway.url, "data:", "blob:")):
            self.faults.append(f"a request to another host: {request.url}")

    def _has_ended(self, request: Request) -> None:
        self._under_way.discard(request)

    async def settle(self) -> None:
        """Waits until the page has shown all that it asked for."""
        await eventually(lambda: not self._under_way, within=20)
        await self.page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        await eventually(lambda: not self._under_way, within=20)


@asynccontextmanager
async def browsing(gateway: Gateway, **context: Any) -> AsyncGenerator[Tab]:
    """`context`: of the browser (viewport, color_scheme, timezone_id …)."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("no chromium (apt-get install chromium)")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=list(_FLAGS))
        try:
            given: dict[str, Any] = {"viewport": {"width": 1440, "height": 900}, **context}
            within = await browser.new_context(**given)
            tab = Tab(await within.new_page(), gateway)
            yield tab
            assert not tab.faults, "\n".join(tab.faults)
        finally:
            await browser.close()
