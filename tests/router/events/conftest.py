"""One scripted engine for each test that asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.router.events.publisher import Publisher


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    one = Publisher()
    yield one
    one.close()
