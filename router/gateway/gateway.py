"""The gateway: the life of a request, from bytes to outcome."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from time import monotonic, time

import orjson

from router.fleet.fleet import Fleet
from router.gateway.control import PROBE_PATHS
from router.gateway.headers import REQUEST_ID_HEADER, fit_request_id
from router.gateway.passage import Passage
from router.gateway.prepare import READERS, Preparer
from router.gateway.serving import Serving
from router.gateway.tunnel import Tunnel
from router.gateway.waiting import WaitingRoom
from router.gateway.walk import Unreached
from router.http.headers import Field
from router.http.reply import Reply
from router.http.request import Request, inflated
from router.observe.metrics import RouterMetrics
from router.observe.outcome import Outcome
from router.observe.tracing import Tracing
from router.wire.errors import ApiError, Source, error_body

log = logging.getLogger("kvring.gateway")

_STARTED = int(time())
_JSON: Field = (b"content-type", b"application/json")
_ID = REQUEST_ID_HEADER.encode()


class Gateway:
    """Serves the API. What serves can be replaced; a request stays with the parts it began with."""

    def __init__(
        self,
        serving: Serving,
        fleet: Fleet,
        preparer: Preparer,
        room: WaitingRoom,
        metrics: RouterMetrics,
        tracing: Tracing,
        tunnel: Tunnel,
        draining: Callable[[], bool],
    ) -> None:
        """`tunnel` leads to what is no inference; while `draining`, connections end behind their answer."""
        self.serving = serving
        self._fleet = fleet
        self._preparer = preparer
        self._room = room
        self._metrics = metrics
        self._tracing = tracing
        self._tunnel = tunnel
        self._draining = draining
        self._held = 0
        metrics.in_flight.set_function(lambda: self._held)

    @property
    def held(self) -> int:
        """Requests in flight."""
        return self._held

    def admit(self, request: Request) -> ApiError | None:
        """Return why a request goes no further than its head: its key is none of ours."""
        fields = request.headers.bytes
        name = self.serving.keyring.name_of(fields.get(b"authorization"), fields.get(b"x-api-key"))
        # All but probes need one: metrics and explanations tell of everybody's requests.
        if name is None and request.path not in PROBE_PATHS:
            return ApiError(401, "the API key is missing or not known", code="invalid_api_key")
        return None

    async def serve(self, request: Request, reply: Reply) -> None:
        """Answer whatever a client asks; an error in OpenAI's shape where that cannot be."""
        request_id = fit_request_id(request.headers.bytes.get(_ID))
        if self._draining():
            reply.keep_alive = False
        try:
            if request.path in READERS and request.method == "POST":
                await self._infer(request, request_id, reply)
            elif request.refusal is not None:
                raise request.refusal
            elif request.path in READERS or (
                request.path == "/v1/models" and request.method not in ("GET", "HEAD")
            ):
                allowed = "POST" if request.path in READERS else "GET, HEAD"
                refusal = error_body(405, f"{request.method} {request.path}: Method Not Allowed")
                _answer(reply, 405, refusal, request_id, [(b"allow", allowed.encode())])
            elif request.path == "/v1/models":
                _answer(reply, 200, self._models(), request_id)
            else:
                await self._inflate(request)
                await self._tunnel.carry(request, request_id, reply)
        except ApiError as error:
            _refuse(reply, error.status, error.body(), request_id, error.headers())
        except Exception:
            log.exception("request %s failed", request_id)
            _refuse(reply, 500, error_body(500, "the router failed"), request_id, {})

    async def _infer(self, request: Request, request_id: str, reply: Reply) -> None:
        """Serve one inference request: prepare, decide, relay."""
        serving = self.serving
        limits = serving.config.limits
        fields = request.headers.bytes
        started = monotonic()
        outcome = Outcome(
            request_id=request_id,
            path=request.path,
            arrived_at=started,
            client_retry=_digits(fields.get(b"x-stainless-retry-count", b"0")),
        )
        trace = self._tracing.begin(request.headers, request.path, request_id)
        outcome.trace_id = trace.trace_id
        self._held += 1
        passage: Passage | None = None
        try:
            if request.refusal is not None:
                raise request.refusal
            if self._held > limits.in_flight:
                self._metrics.of(self._metrics.shed, "in_flight").inc()
                raise ApiError(
                    503, "too many requests in flight", source=Source.ROUTER, retry_after_seconds=1
                )
            serving.admission.check(started)
            if b"content-encoding" in fields:
                await self._inflate(request)
            session = fields.get(serving.session_header)
            prepared = await self._preparer.prepare(
                request.path, request.body, session.decode("latin-1") if session else None
            )
            # What goes on to replicas is held once.
            request.body = b""
            outcome.model, outcome.tier = prepared.ask.model, prepared.tier
            outcome.prompt_tokens, outcome.turn = prepared.ask.prompt_tokens, prepared.turn
            serving.admission.check_model(outcome.model, monotonic())
            passage = Passage(request, reply, prepared, outcome, trace)
            await self._serve(serving, passage)
        except ApiError as error:
            outcome.status = error.status
            if outcome.replica:
                outcome.result = "unanswered"
            else:
                outcome.result = "client_error" if error.source is Source.CLIENT else "refused"
            raise
        except asyncio.CancelledError:
            outcome.status, outcome.result = 499, "client_closed"
            raise
        except Exception:
            outcome.status, outcome.result = 500, "router_error"
            raise
        finally:
            self._held -= 1
            outcome.total_seconds = monotonic() - started
            if outcome.replica:
                serving.admission.reopen()
            if passage is not None:
                passage.end_turn()
                if passage.decision is not None:
                    serving.witness.ended(passage.decision, outcome)
            if outcome.wait_seconds is not None:
                self._metrics.waited.observe(outcome.wait_seconds)
            serving.ledger.enter(outcome)
            trace.ended(outcome)

    async def _inflate(self, request: Request) -> None:
        """Take the body's Content-Encoding away; ApiError where that cannot be."""
        encoding = request.headers.bytes.get(b"content-encoding")
        if encoding is not None:
            limit_bytes = self.serving.config.limits.body_bytes
            request.body = await self._preparer.in_thread(inflated, request.body, encoding, limit_bytes)

    async def _serve(self, serving: Serving, passage: Passage) -> None:
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
        if began < passage.wait_until and not room.waits(model):
            refusal = self._find(serving, passage)
            if refusal is None:
                return
        else:
            refusal = unreached or _others_first()
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

    def _models(self) -> bytes:
        """List the models that routable replicas serve."""
        cards = [
            {"id": model, "object": "model", "created": _STARTED, "owned_by": "kvring"}
            | ({"max_model_len": length} if (length := self._fleet.context_tokens(model)) else {})
            for model in self._fleet.models()
        ]
        return orjson.dumps({"object": "list", "data": cards})


def _answer(reply: Reply, status: int, body: bytes, request_id: str, more: list[Field] | None = None) -> None:
    reply.whole(status, [_JSON, (_ID, request_id.encode()), *(more or ())], body)


def _refuse(reply: Reply, status: int, body: bytes, request_id: str, headers: dict[str, str]) -> None:
    """Answer with an error, or, where an answer has begun, let nobody take it for whole."""
    if reply.started:
        if not reply.ended:
            reply.break_off()
        return
    _answer(reply, status, body, request_id, [(k.encode(), v.encode()) for k, v in headers.items()])


def _others_first() -> ApiError:
    return ApiError(
        503,
        "others have waited longer for a replica of this model",
        source=Source.ROUTER,
        code="no_replica",
        retry_after_seconds=2,
    )


def _digits(text: bytes) -> str:
    """Return a header's number as it may be logged."""
    return text[:4].decode() if text.isdigit() else "-"
