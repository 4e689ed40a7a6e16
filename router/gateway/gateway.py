"""The gateway: the life of a request, from bytes to outcome."""

from __future__ import annotations

import asyncio
from functools import partial
from time import monotonic, time

from aiohttp import web

from router.fleet.fleet import Fleet
from router.gateway.frame import REQUEST_ID
from router.gateway.passage import Passage
from router.gateway.prepare import READERS, Preparer
from router.gateway.serving import Serving
from router.gateway.waiting import WaitingRoom
from router.gateway.walk import Unreached
from router.observe.metrics import RouterMetrics
from router.observe.outcome import Outcome
from router.observe.tracing import Tracing
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
        passage: Passage | None = None
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
            passage = Passage(request, prepared, outcome, trace)
            return await self._serve(serving, passage)
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
            if passage is not None:
                passage.end_turn()
                if passage.decision is not None:
                    serving.witness.ended(passage.decision, outcome)
            if outcome.wait_seconds is not None:
                self._metrics.waited.observe(outcome.wait_seconds)
            serving.ledger.enter(outcome)
            trace.ended(outcome)

    async def _serve(self, serving: Serving, passage: Passage) -> web.StreamResponse:
        """Decide and relay; where nobody could be connected to, once more as if it had just come."""
        unreached: Unreached | None = None
        while True:
            await self._decide(serving, passage, unreached)
            try:
                return await serving.relay.run(passage)
            except Unreached as error:
                unreached = error
                passage.end_turn()

    async def _decide(self, serving: Serving, passage: Passage, unreached: Unreached | None) -> None:
        """Decide at once, or, behind others or where nobody can serve the model now, as soon as may be."""
        room, model, outcome = self._room, passage.prepared.ask.model, passage.outcome
        began = monotonic()
        last = began + room.limits.no_replica_wait_seconds
        if unreached is not None:
            passage.wait_until = min(passage.wait_until, last)
        refusal: ApiError = unreached or _others_first()
        if began < passage.wait_until and not room.waits(model):
            found = self._find(serving, passage)
            if found is None:
                return
            refusal = found
        else:
            passage.trace.deciding()
            passage.trace.queued()
        passage.wait_until = min(passage.wait_until, last)
        room.admit(refusal, passage.wait_until)
        try:
            find = partial(self._find, serving, passage)
            passage.turn = await room.wait(model, find, refusal, passage.wait_until)
        finally:
            outcome.wait_seconds = (outcome.wait_seconds or 0.0) + monotonic() - began

    def _find(self, serving: Serving, passage: Passage) -> ApiError | None:
        """Decide, or return why nobody can serve the request now; ApiError where nobody ever can."""
        prepared, trace = passage.prepared, passage.trace
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
        passage.decision = serving.witness.decided(
            prepared.ask, view, ranking, now, passage.outcome, prepared.prompts, passage.decision
        )
        return None

    async def models(self, request: web.Request) -> web.Response:
        """List the models that routable replicas serve."""
        cards = [
            {"id": model, "object": "model", "created": _STARTED, "owned_by": "kvring"}
            | ({"max_model_len": length} if (length := self._fleet.context_tokens(model)) else {})
            for model in self._fleet.models()
        ]
        return web.json_response({"object": "list", "data": cards})


def _others_first() -> ApiError:
    return ApiError(
        503,
        "others have waited longer for a replica of this model",
        source=Source.ROUTER,
        code="no_replica",
        retry_after_seconds=2,
    )


def _digits(text: str) -> str:
    """Return a header's number as it may be logged."""
    return text[:4] if text.isascii() and text.isdigit() else "-"
