"""Any other OpenAI-compatible server: it lives, and lists its models."""

from __future__ import annotations

from router.config import EventOptions
from router.engines.answers import ask_health, ask_models
from router.engines.engine import EngineFacts, EngineLoad, Get


class Plain:
    """A server of which nothing else is known."""

    kind = "plain"
    health_computes = False

    async def ready(self, get: Get) -> bool:
        """Ask /health; a server without one that answers at all is well."""
        return await ask_health(get)

    async def facts(self, get: Get, host: str, options: EventOptions) -> EngineFacts:
        """Ask for the models."""
        models = await ask_models(get)
        return EngineFacts(
            engine=self.kind,
            models=models.names,
            context_tokens=models.context_tokens,
            adapters=models.adapters,
        )

    async def load(self, get: Get) -> EngineLoad | None:
        """Return None: it tells none. What this router sent there is all that is known."""
        return None
