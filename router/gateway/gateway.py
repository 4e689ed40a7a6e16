"""The gateway: the life of a request, from bytes to outcome."""

from __future__ import annotations

import asyncio
from time import monotonic, time

from aiohttp import web

from router.fleet.fleet import Fleet
from router.gateway.frame import REQUEST_ID
from router.gateway.prepare import READERS, Prepared, Preparer
from router.gateway.serving import Serving
from router.gateway.waiting import Turn, WaitingRoom
from router.observe.metrics import RouterMetrics
from router.observe.outcome import Outcome
from router.observe.tracing import Trace, Tracing
from router.observe.witness import Decision
from router.wire.errors import ApiError, Source
from router.wire.intake import read_body

_STARTED = int(time())


class Gateway:
    """Handlers of the API. What serves can be replaced; a request stays with the parts it began with."""

    def __init__(
        self,
        serving: Serving,
        fleet: Fleet,
        preparer: Preparer,
        room: WaitingRoom,
        metrics: RouterMetrics,
        tracing: Tracing,
    ) -> None:
        self.serving = serving
        self._fleet = fleet
        self._preparer = preparer
        self._room = room
        self._metrics = metrics
        self._tracing = tracing
        self._held = 0
        metrics.in_flight.set_function(lambda: self._held)

    @property
    def held(self) -> int:
        """Requests in flight."""
        return self._held

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Add the API's routes."""
        for path in READERS:
            router.add_post(path, self.infer)
        router.add_get("/v1/models", self.models)

    async def infer(self, request: web.Request) -> web.StreamResponse:
        """Serve one inference request: prepare, decide, relay."""
        serving = self.serving
        limits = serving.config.limits
        started = monotonic()
        outcome = Outcome(
            request_id=request[REQUEST_ID],
            path=request.path,
            arrived_at=started,
            client_retry=_digits(request.headers.get("x-stainless-retry-count", "0")),
        )
        trace = self._tracing.begin(request.headers, request.path, outcome.request_id)
        outcome.trace_id = trace.trace_id
        self._held += 1
        decision: Decision | None = None
        turn: Turn | None = None
        try:
            if self._held > limits.in_flight:
                self._metrics.shed.labels("in_flight").inc()
                raise ApiError(
                    503, "too many requests in flight", source=Source.ROUTER, retry_after_seconds=1
                )
            raw = await read_body(request, limits.body_bytes, limits.body_seconds)
            session = request.headers.get(serving.config.sessions.header)
            prepared = await self._preparer.prepare(request.path, raw, session)
            outcome.model, outcome.tier = prepared.ask.model, prepared.tier
            outcome.prompt_tokens, outcome.turn = prepared.ask.prompt_tokens, prepared.turn
            decision, turn = await self._decide(serving, prepared, outcome, trace)
            return await serving.relay.run(request, prepared, decision, outcome, trace, turn)
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
            if turn is not None:
                turn.end()
            if decision is not None:
                serving.witness.ended(decision, outcome)
            serving.ledger.enter(outcome)
            trace.ended(outcome)

    async def _decide(
        self, serving: Serving, prepared: Prepared, outcome: Outcome, trace: Trace
    ) -> tuple[Decision, Turn | None]:
        """Decide at once, or, where nobody can serve the model now, as soon as somebody can."""
        decided: list[Decision] = []

        def find() -> ApiError | None:
            now = monotonic()
            trace.deciding()
            try:
                view, ranking = serving.decider.decide(prepared.ask, now)
            except ApiError as error:
                if error.source is Source.CLIENT:
                    raise
                trace.queued()
                return error
            trace.decided(ranking, serving.config.policy.name)
            decided.append(
                serving.witness.decided(prepared.ask, view, ranking, now, outcome, prepared.prompts)
            )
            return None

        refusal = find()
        if refusal is None:
            return decided[0], None
        began = monotonic()
        try:
            turn = await self._room.wait(lambda: find() is None, refusal)
        finally:
            outcome.wait_seconds = monotonic() - began
        return decided[0], turn

    async def models(self, request: web.Request) -> web.Response:
        """List the models that routable replicas serve."""
        cards = [
            {"id": model, "object": "model", "created": _STARTED, "owned_by": "kvring"}
            | ({"max_model_len": length} if (length := self._fleet.context_tokens(model)) else {})
            for model in self._fleet.models()
        ]
        return web.json_response({"object": "list", "data": cards})


def _digits(text: str) -> str:
    """Return a header's number as it may be logged."""
    return text[:4] if text.isascii() and text.isdigit() else "-"
