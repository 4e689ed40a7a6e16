"""What a worker answers when it is asked through its supervisor."""

from __future__ import annotations

from router.gateway.core import Core
from router.observe.merge import snapshot


class CoreAnswers:
    """Answers from a router's core."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def snapshot(self) -> bytes:
        """Return its metrics as they are now."""
        self._core.fleet.observe()
        return snapshot(self._core.metrics.registry)

    def explained(self, request_id: str) -> bytes:
        """Explain one of its last requests as JSON; empty where it knows none of that id."""
        return self._core.serving.debug.explained(request_id)
