"""The gateway: the life of a request, from bytes to outcome, and the router's own endpoints."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from time import monotonic, time

from aiohttp import web

from router.config import RouterConfig
from router.fleet.fleet import Fleet
from router.gateway.debug import Debug
from router.gateway.decide import Decider
from router.gateway.headers import REQUEST_ID_HEADER, request_id_of
from router.gateway.prepare import READERS, Prepared, Preparer
from router.gateway.relay import Relay
from router.observe.ledger import Ledger, Outcome
from router.observe.metrics import RouterMetrics
from router.observe.witness import Decision, Witness
from router.wire.errors import ApiError, Source, error_body
from router.wire.intake import read_body

log = logging.getLogger("kvring.gateway")

_REQUEST_ID = web.RequestKey("request_id", str)
_STARTED = int(time())


class Gateway:
    """Handlers of the router's HTTP surface."""

    def __init__(
        self,
        config: RouterConfig,
        fleet: Fleet,
        preparer: Preparer,
        decider: Decider,
        relay: Relay,
        witness: Witness,
        ledger: Ledger,
        metrics: RouterMetrics,
        debug: Debug,
    ) -> None:
        self._config = config
        self._fleet = fleet
        self._preparer = preparer
        self._decider = decider
        self._relay = relay
        self._witness = witness
        self._ledger = ledger
        self._metrics = metrics
        self._debug = debug
        self._held = 0
        self.draining = False

    @property
    def held(self) -> int:
        """Requests in flight."""
        return self._held

    def application(self) -> web.Application:
        """Return the aiohttp application."""
        application = web.Application(middlewares=[self._frame])
        for path in READERS:
            application.router.add_post(path, self.infer)
        application.router.add_get("/v1/models", self.models)
        application.router.add_get("/healthz", self.healthz)
        application.router.add_get("/readyz", self.readyz)
        application.router.add_get("/metrics", self.metrics)
        self._debug.add_to(application.router)
        return application

    async def infer(self, request: web.Request) -> web.StreamResponse:
        """Serve one inference request: prepare, decide, relay."""
        started = monotonic()
        outcome = Outcome(
            request_id=request[_REQUEST_ID],
            path=request.path,
            arrived_at=started,
            client_retry=_digits(request.headers.get("x-stainless-retry-count", "0")),
        )
        self._held += 1
        decision: Decision | None = None
        try:
            if self._held > self._config.limits.in_flight:
                raise ApiError(
                    503, "too many requests in flight", source=Source.ROUTER, retry_after_seconds=1
                )
            limits = self._config.limits
            raw = await read_body(request, limits.body_bytes, limits.body_seconds)
            session = request.headers.get(self._config.sessions.header)
            prepared = await self._preparer.prepare(request.path, raw, session)
            outcome.model, outcome.tier = prepared.ask.model, prepared.tier
            outcome.prompt_tokens = prepared.ask.prompt_tokens
            decision = self._decide(prepared, outcome)
            return await self._relay.run(request, prepared, decision, outcome)
        except ApiError as error:
            outcome.status = error.status
            if outcome.replica:
                outcome.result = "unanswered"
            else:
                outcome.result = "client_error" if error.source is Source.CLIENT else "refused"
            raise
        except (asyncio.CancelledError, ConnectionResetError):
            outcome.status, outcome.result = 499, "client_closed"
            raise
        except Exception:
            outcome.status, outcome.result = 500, "router_error"
            raise
        finally:
            self._held -= 1
            outcome.total_seconds = monotonic() - started
            if decision is not None:
                self._witness.ended(decision, outcome)
            self._ledger.enter(outcome)

    def _decide(self, prepared: Prepared, outcome: Outcome) -> Decision:
        now = monotonic()
        view, ranking = self._decider.decide(prepared.ask, now)
        return self._witness.decided(prepared.ask, view, ranking, now, outcome, prepared.prompts)

    async def models(self, request: web.Request) -> web.Response:
        """List the models that routable replicas serve."""
        cards = [
            {"id": model, "object": "model", "created": _STARTED, "owned_by": "kvring"}
            | ({"max_model_len": length} if (length := self._fleet.context_tokens(model)) else {})
            for model in self._fleet.models()
        ]
        return web.json_response({"object": "list", "data": cards})

    async def healthz(self, request: web.Request) -> web.Response:
        """Tell that the process lives."""
        return web.json_response({"status": "ok"})

    async def readyz(self, request: web.Request) -> web.Response:
        """Tell whether requests can be served."""
        if self.draining:
            return web.json_response({"status": "draining"}, status=503)
        usable = self._fleet.routable_count
        total = len(self._fleet.replicas)
        if not usable:
            reason = f"none of {total} replicas is usable" if total else "the fleet has no replica"
            return web.json_response({"status": "not ready", "reason": reason}, status=503)
        return web.json_response({"status": "ok", "usable_replicas": usable, "replicas": total})

    async def metrics(self, request: web.Request) -> web.Response:
        """Expose the metrics."""
        self._fleet.observe()
        self._metrics.in_flight.set(self._held)
        return web.Response(
            body=self._metrics.render(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        )

    @web.middleware
    async def _frame(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Give every request an id, and every error OpenAI's shape."""
        request[_REQUEST_ID] = request_id_of(request.headers)
        try:
            response = await handler(request)
        except ApiError as error:
            response = _error(error.status, error.body(), error.headers())
        except web.HTTPException as error:
            if error.status < 400:
                raise
            body = error_body(error.status, f"{request.method} {request.path[:200]}: {error.reason}")
            kept = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
            response = _error(error.status, body, kept)
        except ConnectionResetError:
            # The client left: there is nobody to answer.
            raise
        except Exception:
            log.exception("request %s failed", request[_REQUEST_ID])
            response = _error(500, error_body(500, "the router failed"), {})
        if not response.prepared:
            response.headers.setdefault(REQUEST_ID_HEADER, request[_REQUEST_ID])
            if self.draining:
                response.force_close()
        return response


def _digits(text: str) -> str:
    """Return a header's number as it may be logged."""
    return text[:4] if text.isascii() and text.isdigit() else "-"


def _error(status: int, body: bytes, headers: dict[str, str]) -> web.Response:
    return web.Response(status=status, body=body, content_type="application/json", headers=headers)
