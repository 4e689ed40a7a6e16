"""What holds for every test."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _log_level() -> Iterator[None]:
    """Leave the log's level as it was: a router that takes up other options sets it."""
    before = logging.getLogger().level
    yield
    logging.getLogger().setLevel(before)
