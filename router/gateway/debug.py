"""Debug: explains decisions, and reports on shadows and layouts: in names and numbers, never in text."""

from __future__ import annotations

from time import monotonic

import orjson
from aiohttp import web

from router.config import RouterConfig
from router.gateway.decide import Decider
from router.gateway.prepare import Preparer
from router.gateway.siblings import Siblings
from router.observe.decisions import Decisions
from router.observe.explain import brief, explanation
from router.observe.layout.watch import LayoutWatch
from router.observe.shadow import Shadows
from router.observe.witness import Witness
from router.wire.body import parse_body
from router.wire.errors import ApiError
from router.wire.intake import read_body

_CHAT, _COMPLETION = "/v1/chat/completions", "/v1/completions"
_MOST_DECISIONS, _USUAL_DECISIONS = 1000, 50


class Debug:
    """Handlers under /debug; what the options do not turn on answers 404."""

    def __init__(
        self,
        config: RouterConfig,
        preparer: Preparer,
        decider: Decider,
        witness: Witness,
        decisions: Decisions | None,
        shadows: Shadows,
        watch: LayoutWatch | None,
    ) -> None:
        self._config = config
        self._preparer = preparer
        self._decider = decider
        self._witness = witness
        self._decisions = decisions
        self._shadows = shadows
        self._watch = watch

    @property
    def explains(self) -> bool:
        """Whether single requests are explained."""
        return self._decisions is not None

    async def decisions(self, request: web.Request) -> web.Response:
        """Tell of the last decisions in short, the newest first."""
        if self._decisions is None:
            raise _off("observe.explain")
        limit = _limit(request.query.get("limit", str(_USUAL_DECISIONS)))
        return _json({"decisions": [brief(*one) for one in self._decisions.latest(limit)]})

    async def explain_body(self, request: web.Request) -> web.Response:
        """Rank for a request's body as if it had come in now. Nothing is sent, and nothing remembered."""
        if self._decisions is None:
            raise _off("observe.explain")
        limits = self._config.limits
        raw = await read_body(request, limits.body_bytes, limits.body_seconds)
        path = _CHAT if "messages" in parse_body(raw) else _COMPLETION
        session = request.headers.get(self._config.sessions.header)
        prepared = await self._preparer.prepare(path, raw, session, watched=False)
        now = monotonic()
        view, ranking = self._decider.rank(prepared.ask, now)
        record = self._witness.explain(prepared.ask, prepared.tier, view, ranking, now)
        return _json(explanation(record))

    async def explain_request(self, request: web.Request, siblings: Siblings | None) -> web.Response:
        """Explain one of the last requests, by its id, whichever worker served it."""
        if self._decisions is None:
            raise _off("observe.explain")
        request_id = request.match_info["request_id"]
        body = self.explained(request_id)
        if not body and siblings is not None:
            body = await siblings.explained(request_id)
        if not body:
            raise ApiError(
                404,
                f"no such request among the last {self._config.observe.explained_requests}",
                code="request_not_found",
            )
        return web.Response(body=body, content_type="application/json")

    def explained(self, request_id: str) -> bytes:
        """Explain one of the last requests of this worker as JSON; empty where it knows none of that id."""
        found = self._decisions.find(request_id) if self._decisions is not None else None
        return orjson.dumps(explanation(found)) if found is not None else b""

    async def shadow(self, request: web.Request) -> web.Response:
        """Report on the shadow policies."""
        if not len(self._shadows):
            raise _off("observe.shadow")
        return _json({"acting": self._config.policy.name, "shadows": self._shadows.report()})

    async def layout(self, request: web.Request) -> web.Response:
        """Report what the layouts of the prompts cost; all but `skipped` are estimates for all traffic."""
        watch = self._watch
        if self._decisions is None or watch is None:
            raise _off("observe.explain" if watch else "observe.layout.sample_share")
        share = self._config.observe.layout.sample_share
        return _json({"sample_share": share, "skipped": watch.skipped, **watch.report().to_json()})


def _limit(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) < 5 and 1 <= int(text) <= _MOST_DECISIONS:
        return int(text)
    raise ApiError(400, f"limit is a number from 1 to {_MOST_DECISIONS}", param="limit")


def _off(option: str) -> ApiError:
    return ApiError(404, f"{option} is off", code="turned_off")


def _json(value: object) -> web.Response:
    return web.Response(body=orjson.dumps(value), content_type="application/json")
