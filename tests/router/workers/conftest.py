"""A scripted replica for workers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.router.scripted import ScriptedReplica


@pytest.fixture
async def replica() -> AsyncIterator[ScriptedReplica]:
    """One replica that answers as told."""
    made = ScriptedReplica("r0")
    await made.start()
    yield made
    await made.stop()
