"""A real headless browser on a router's page; what it complains of, and whom it asks, is noted."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Browser, ConsoleMessage, Page, Request, Route, async_playwright

DESKTOP, PHONE = (1400, 900), (360, 740)
_ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--no-first-run",
)
_LIMIT_SECONDS = 20.0


@dataclass
class Browsed:
    """A page that is open, what its console said, and which addresses it asked."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    asked: set[str] = field(default_factory=set)

    async def text(self, selector: str) -> str:
        """Return the text as shown of the first element of that selector."""
        return await self.page.locator(selector).first.inner_text()

    async def texts(self, selector: str) -> list[str]:
        """Return the texts of all elements of that selector."""
        return await self.page.locator(selector).all_inner_texts()

    async def until(self, expression: str) -> None:
        """Wait until a JavaScript expression holds. Asked from outside: the page may not evaluate text."""
        async with asyncio.timeout(_LIMIT_SECONDS):
            while not await self.page.evaluate(expression):  # noqa: ASYNC110 - looked at from outside
                await asyncio.sleep(0.05)


def chromium() -> str:
    """Return the path of a browser; without one tests are skipped, but never in continuous integration."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        if os.environ.get("CI") == "true":
            pytest.fail("there is no chromium")
        pytest.skip("there is no chromium")
    return found


class Opener:
    """Opens pages, each in a context of its own, in one browser."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser

    @asynccontextmanager
    async def __call__(
        self,
        url: str,
        size: tuple[int, int] = DESKTOP,
        *,
        dark: bool = False,
        fleet: dict[str, Any] | None = None,
    ) -> AsyncIterator[Browsed]:
        """Open a page and wait until it shows something; `fleet` is told in place of the router's."""
        context = await self._browser.new_context(
            viewport={"width": size[0], "height": size[1]}, color_scheme="dark" if dark else "light"
        )
        try:
            page = await context.new_page()
            page.set_default_timeout(1000 * _LIMIT_SECONDS)
            browsed = Browsed(page)
            _listen(browsed)
            if fleet is not None:
                await _tell(page, fleet)
            await page.goto(url)
            await browsed.until("document.querySelectorAll('#replicas tbody tr').length > 0")
            yield browsed
        finally:
            await context.close()


@asynccontextmanager
async def opened() -> AsyncIterator[Opener]:
    """Start a browser."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium(), args=_ARGUMENTS)
        try:
            yield Opener(browser)
        finally:
            await browser.close()


def _listen(browsed: Browsed) -> None:
    def said(message: ConsoleMessage) -> None:
        if message.type == "error":
            browsed.complaints.append(message.text)

    def asks(request: Request) -> None:
        address = urlsplit(request.url)
        browsed.asked.add(f"{address.scheme}://{address.netloc}")

    browsed.page.on("console", said)
    browsed.page.on("pageerror", lambda error: browsed.complaints.append(str(error)))
    browsed.page.on("request", asks)


async def _tell(page: Page, fleet: dict[str, Any]) -> None:
    async def answer(route: Route) -> None:
        await route.fulfill(json=fleet)

    await page.route("**/debug/fleet", answer)
