"""The replica's HTTP surface: OpenAI's endpoints, and what routers and operators ask."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from time import monotonic, time
from uuid import uuid4

import orjson
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from replica.api import read_chat, read_completion
from replica.digests import DigestKeeper
from replica.generation import Generation, ReadRequest, StreamFailed
from replica.handover import HandoverDesk, read_bounds
from replica.metrics import Metrics
from replica.options import ReplicaOptions
from replica.prewarm import Prewarmer
from replica.publisher import ZmqPublisher
from replica.resume import read_resumed
from replica.service import Service
from router.chain.chain import ChainIdentity
from router.wire.errors import ApiError, Source
from router.wire.intake import read_body
from router.wire.report import DIGEST_AGE_HEADER, ORCA_HEADER, ORCA_REQUEST_HEADER, ReplicaState

_log = logging.getLogger(__name__)
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_REQUEST_ID = "x-request-id"
_RETRY_AFTER_SECONDS = 1
_CHAT, _COMPLETION = "/v1/chat/completions", "/v1/completions"
# Where a stream goes on that began elsewhere.
_RESUME = "/resume"
_INFERENCE = frozenset((_CHAT, _COMPLETION, _RESUME + _CHAT, _RESUME + _COMPLETION))


@dataclass(frozen=True, slots=True)
class Ready:
    """What a replica is made of once its model is loaded, `since` monotonic seconds."""

    service: Service
    generation: Generation
    digests: DigestKeeper
    prewarmer: Prewarmer
    handover: HandoverDesk
    identity: ChainIdentity
    context_tokens: int
    since: float


class Server:
    """Handles requests. `ready` is None while the model loads; `draining` refuses new work.

    /v1 and /health are for everybody. The rest is for routers and operators: it tells of the load, clears the
    cache, goes on with answers that are said to have begun elsewhere, and /handover tells what tenants asked
    and their salts. No ingress may lead there.
    """

    def __init__(self, options: ReplicaOptions, uid: str, metrics: Metrics) -> None:
        self.ready: Ready | None = None
        self.events: ZmqPublisher | None = None
        self.draining = False
        self.uid = uid
        self._options = options
        self._metrics = metrics
        self._created = int(time())

    def application(self) -> web.Application:
        """Return the aiohttp application."""
        application = web.Application(middlewares=[self._answer_errors])
        application.on_response_prepare.append(self._add_headers)
        application.add_routes(
            [
                web.post(_CHAT, self._chat),
                web.post(_COMPLETION, self._completion),
                web.post(_RESUME + _CHAT, self._resume_chat),
                web.post(_RESUME + _COMPLETION, self._resume_completion),
                web.get("/v1/models", self._models),
                web.get("/health", self._health),
                web.get("/state", self._state),
                web.get("/digest", self._digest),
                web.get("/metrics", self._prometheus),
                web.post("/reset_prefix_cache", self._reset),
                web.get("/kv_event_sources", self._event_sources),
                web.post("/handover", self._handover),
                web.post("/prefill", self._prefill),
            ]
        )
        return application

    def epoch_of(self, cache_epoch: int) -> str:
        """Name one life of the cache, as ReplicaState.epoch does."""
        return f"{self.uid}:{cache_epoch}"

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._infer(request, read_chat)

    async def _completion(self, request: web.Request) -> web.StreamResponse:
        read = partial(read_completion, max_prompts=self._options.limits.max_prompts)
        return await self._infer(request, read)

    async def _resume_chat(self, request: web.Request) -> web.StreamResponse:
        return await self._infer(request, partial(read_resumed, read=read_chat))

    async def _resume_completion(self, request: web.Request) -> web.StreamResponse:
        read = partial(read_completion, max_prompts=1)
        return await self._infer(request, partial(read_resumed, read=read))

    async def _infer(self, request: web.Request, read: ReadRequest) -> web.StreamResponse:
        outcome = "error"
        try:
            # Refused before its body is read: there is no use in receiving what will not be served.
            self._admitting()
            limits = self._options.limits
            raw = await read_body(request, limits.max_body_bytes, limits.read_seconds)
            response = await self._admitting().generation.answer(request, raw, read)
            outcome = "ok"
            return response
        except (asyncio.CancelledError, ConnectionError):
            outcome = "client_closed"
            raise
        except StreamFailed as failed:
            outcome = "client_closed" if failed.client_closed else "error"
            raise
        except ApiError as error:
            outcome = "refused" if error.status == 503 else "error" if error.status >= 500 else "client_error"
            raise
        finally:
            self._metrics.observe_request(outcome)

    async def _models(self, request: web.Request) -> web.Response:
        ready = self._loaded()
        card = {
            "id": self._options.model,
            "object": "model",
            "created": self._created,
            "owned_by": "kvring",
            "root": self._options.model,
            "parent": None,
            "max_model_len": ready.context_tokens,
        }
        return _json({"object": "list", "data": [card]})

    async def _health(self, request: web.Request) -> web.Response:
        if self.ready is None:
            status = "loading"
        elif self.draining:
            status = "draining"
        else:
            status = "broken" if self.ready.service.engine.snapshot.broken else "ok"
        return _json({"status": status}, 200 if status == "ok" else 503)

    async def _state(self, request: web.Request) -> web.Response:
        ready = self._loaded()
        snapshot = ready.service.engine.snapshot
        state = ReplicaState(
            name=self._options.name,
            uid=self.uid,
            cache_epoch=snapshot.epoch,
            models=(self._options.model,),
            chain=ready.identity,
            load=ready.service.report(),
            prefill=ready.service.prefill,
            context_tokens=ready.context_tokens,
            block_count=snapshot.block_count,
            free_blocks=snapshot.free_blocks,
            ready=not snapshot.broken,
            draining=self.draining,
            serving_seconds=monotonic() - ready.since,
        )
        return _json(state.to_json())

    async def _digest(self, request: web.Request) -> web.Response:
        ready = self._loaded()
        snapshot = ready.service.engine.snapshot
        age = 0.0 if snapshot.names_at is None else monotonic() - snapshot.names_at
        tag = f"{self.epoch_of(snapshot.epoch)}:{snapshot.names_version}"
        if any(known.value in (tag, "*") for known in request.if_none_match or ()):
            response = web.Response(status=304)
        else:
            digest = await ready.digests.digest(snapshot)
            response = _json({**digest.to_json(), "age_seconds": age})
        response.etag = tag
        # It ages without changing, which a 304 must tell too.
        response.headers[DIGEST_AGE_HEADER] = f"{age:.3f}"
        return response

    async def _prometheus(self, request: web.Request) -> web.Response:
        return web.Response(body=self._metrics.render(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _reset(self, request: web.Request) -> web.Response:
        engine = self._loaded().service.engine
        if not await asyncio.wrap_future(engine.reset()):
            raise ApiError(409, "blocks are in use", source=Source.REPLICA, code="blocks_in_use")
        return _json({"cache_epoch": engine.snapshot.epoch})

    async def _event_sources(self, request: web.Request) -> web.Response:
        return _json({"0": self.events.to_json()} if self.events is not None else {})

    async def _handover(self, request: web.Request) -> web.Response:
        ready = self._loaded()
        if not self.draining:
            raise ApiError(409, "the replica stays", source=Source.REPLICA, code="not_draining")
        limit, tokens = read_bounds(request.query.get("limit"), request.query.get("tokens"))
        engine = ready.service.engine
        give = partial(ready.handover.give, limit=limit, tokens=tokens)
        return _json((await asyncio.wrap_future(engine.look(give))).to_json())

    async def _prefill(self, request: web.Request) -> web.Response:
        self._admitting().prewarmer.admit()
        limits = self._options.limits
        raw = await read_body(request, limits.max_body_bytes, limits.read_seconds)
        sequence = await self._admitting().prewarmer.read(raw)
        return _json(await self._admitting().prewarmer.compute(sequence))

    def _loaded(self) -> Ready:
        if self.ready is None:
            raise _unavailable("the model is being loaded", "loading")
        return self.ready

    def _admitting(self) -> Ready:
        ready = self._loaded()
        if self.draining:
            raise _unavailable("the replica is shutting down", "shutting_down")
        return ready

    @web.middleware
    async def _answer_errors(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        try:
            response = await handler(request)
        except StreamFailed as failed:
            response = failed.response
        except ApiError as error:
            response = _error(error)
        except web.HTTPException as error:
            response = _error(ApiError(error.status, error.reason.lower()))
            if "Allow" in error.headers:
                response.headers["Allow"] = error.headers["Allow"]
        except ConnectionError:
            # Nobody is left to be answered.
            raise
        except Exception:
            _log.exception("a fault while answering %s %s", request.method, request.path)
            response = _error(ApiError(500, "the replica is at fault", source=Source.REPLICA))
        return response

    async def _add_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        """Add the request's id to every response, and the load to every inference response that asks."""
        given = request.headers.get(_REQUEST_ID, "")
        response.headers[_REQUEST_ID] = given if _printable(given) else uuid4().hex
        if self.draining:
            # The connection's own header has been settled before this is called.
            response.headers["Connection"] = "close"
            response.force_close()
        if (
            self.ready is not None
            and request.path in _INFERENCE
            and request.headers.get(ORCA_REQUEST_HEADER, "").lower() == "text"
        ):
            response.headers[ORCA_HEADER] = self.ready.service.report().to_orca()


def _printable(text: str) -> bool:
    return 0 < len(text) <= 128 and text.isascii() and text.isprintable()


def _json(value: object, status: int = 200) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(value), content_type="application/json")


def _error(error: ApiError) -> web.Response:
    return web.Response(
        status=error.status, body=error.body(), content_type="application/json", headers=error.headers()
    )


def _unavailable(message: str, code: str) -> ApiError:
    return ApiError(503, message, source=Source.REPLICA, code=code, retry_after_seconds=_RETRY_AFTER_SECONDS)
