"""Fixtures of the page's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.page.browser import Opener, opened


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browse() -> AsyncIterator[Opener]:
    """One browser for all tests, which run on its loop; each gets pages of its own."""
    async with opened() as opener:
        yield opener
