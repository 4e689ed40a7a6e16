"""The llama.cpp server: facts from /props, load from /metrics, or /slots where that is turned off."""

from __future__ import annotations

from router.config import EventOptions
from router.engines.answers import (
    ask_health,
    ask_json,
    ask_models,
    ask_object,
    count,
    maybe_count,
    name,
    share,
)
from router.engines.engine import EngineFacts, EngineLoad, Get
from router.engines.page import ask_page

_MOST_SLOTS = 4096


class LlamaCpp:
    """One llama-server. It caches by the token, in a few slots: there are no blocks."""

    kind = "llamacpp"
    health_computes = False

    def __init__(self) -> None:
        self._has_metrics = True

    async def ready(self, get: Get) -> bool:
        """Ask /health: 503 while it loads its model."""
        return await ask_health(get)

    async def facts(self, get: Get, host: str, options: EventOptions) -> EngineFacts:
        """Ask /props and the models."""
        self._has_metrics = True
        props = await ask_object(get, "/props") or {}
        models = await ask_models(get)
        settings = props.get("default_generation_settings")
        return EngineFacts(
            engine=self.kind,
            version=name(props.get("build_info")),
            # Drawn at random at each start, so that prompts cannot forge it; older builds tell none.
            process=name(props.get("media_marker")),
            models=models.names,
            # Of one slot: what one request may fill.
            context_tokens=maybe_count(settings.get("n_ctx"), 1) if isinstance(settings, dict) else None,
        )

    async def load(self, get: Get) -> EngineLoad | None:
        """Ask /metrics; once that is not there, /slots until facts are asked for again."""
        if self._has_metrics:
            page = await ask_page(get, "/metrics")
            running = page.total("llamacpp:requests_processing") if page else None
            waiting = page.total("llamacpp:requests_deferred") if page else None
            if page and running is not None and waiting is not None:
                computed = page.total("llamacpp:prompt_tokens")
                hits = page.total("llamacpp:prompt_tokens_cached")
                return EngineLoad(
                    running=count(running, "llamacpp:requests_processing"),
                    waiting=count(waiting, "llamacpp:requests_deferred"),
                    kv_usage=page.mean_share("llamacpp:kv_cache_usage_ratio") or 0.0,
                    # It counts what it computed; newer builds also what it did not have to.
                    query_tokens=None if computed is None or hits is None else computed + hits,
                    hit_tokens=hits,
                )
            self._has_metrics = False
        slots = await ask_json(get, "/slots")
        return None if slots is None else _slots_load(slots)


def _slots_load(slots: object) -> EngineLoad:
    """Read the slots. Requests that wait for one are not told, and count as none."""
    if not isinstance(slots, list) or not 1 <= len(slots) <= _MOST_SLOTS:
        raise ValueError(f"/slots tells 1 to {_MOST_SLOTS} slots")
    running, used, room = 0, 0, 0
    for slot in slots:
        busy = slot.get("is_processing") if isinstance(slot, dict) else None
        if not isinstance(busy, bool):
            raise ValueError("/slots tells of each slot whether it is processing")
        running += busy
        size = maybe_count(slot.get("n_ctx"), 1) or 0
        room += size
        if busy:
            used += min(size, maybe_count(slot.get("n_prompt_tokens")) or 0)
    return EngineLoad(running=running, waiting=0, kv_usage=share(used / room, "/slots") if room else 0.0)
