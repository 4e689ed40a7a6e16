"""One inference request: read, prepared, let in, and answered whole or as a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Executor
from typing import Any, TypeVar

from aiohttp import web

from replica.answer import Answer, Choice
from replica.api import GenerationRequest, Resumed
from replica.detokenizer import Detokenizer, TokenizerDetokenizer, WordDetokenizer
from replica.options import LimitOptions
from replica.prepare import Preparer
from replica.resume import replay
from replica.sequence import Finish
from replica.service import Lease, Service
from router.wire.body import parse_body
from router.wire.errors import ApiError, Source
from router.wire.sse import DONE, encode_event

_Result = TypeVar("_Result")
# Understands a body; ApiError 400 where it cannot.
ReadRequest = Callable[[Mapping[str, Any]], GenerationRequest]
_STREAM_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache, no-transform",
    "X-Accel-Buffering": "no",
}


class Generation:
    """Answers inference requests for one served model."""

    def __init__(
        self,
        service: Service,
        preparer: Preparer,
        model: str,
        limits: LimitOptions,
        defaults: Mapping[str, float],
        executor: Executor,
    ) -> None:
        """`defaults` are values of request fields that stand where a request has none."""
        self._service = service
        self._preparer = preparer
        self._model = model
        self._limits = limits
        self._defaults = defaults
        self._executor = executor

    async def answer(self, http: web.Request, raw: bytes, read: ReadRequest) -> web.StreamResponse:
        """Answer the body `raw`, understood by `read`; ApiError before anything was sent."""
        size = len(raw)
        request = await self._compute(size, lambda: read(self._complete(parse_body(raw))))
        if request.model != self._model:
            raise ApiError(
                404, f"the model '{request.model}' does not exist", code="model_not_found", param="model"
            )
        with self._service.lease(len(request.prompts)) as lease:
            sequences = await self._compute(
                size, lambda: [self._preparer.sequence(prompt, request) for prompt in request.prompts]
            )
            choices = [Choice(self._detokenizer(), request.stops, sequence.end_ids) for sequence in sequences]
            answer = Answer(request, sequences, choices)
            if resumed := request.resumed:
                await self._compute(size, lambda: replay(choices[0], sequences[0], resumed))
            if choices[0].finish is None:
                lease.submit(sequences)
            if request.stream:
                return await self._stream(http, lease, answer, choices, resumed)
            return await self._whole(lease, answer, choices)

    def _complete(self, body: dict[str, Any]) -> dict[str, Any]:
        return body | {name: value for name, value in self._defaults.items() if body.get(name) is None}

    async def _whole(self, lease: Lease, answer: Answer, choices: list[Choice]) -> web.Response:
        texts: list[list[str]] = [[] for _ in choices]
        async for pieces in _pieces(lease, choices):
            for index, text in pieces.items():
                texts[index].append(text)
        body = answer.whole(["".join(parts) for parts in texts])
        return web.Response(body=body, content_type="application/json")

    async def _stream(
        self,
        http: web.Request,
        lease: Lease,
        answer: Answer,
        choices: list[Choice],
        resumed: Resumed | None,
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers=_STREAM_HEADERS)
        # Sent now, so that a client knows that it was let in long before its first token.
        await response.prepare(http)
        opened = {0} if resumed else set()
        try:
            if resumed and choices[0].finish and not resumed.ended:
                await self._write(http, response, answer.end(0))
            async for pieces in _pieces(lease, choices):
                events = []
                for index, text in pieces.items():
                    if index not in opened:
                        opened.add(index)
                        events.append(answer.opening(index))
                    if text:
                        events.append(answer.piece(index, text))
                    if choices[index].finish:
                        events.append(answer.end(index))
                await self._write(http, response, b"".join(events))
            await self._write(http, response, answer.usage_event() + DONE)
        except ApiError as error:
            # The status is gone already: the error goes where clients look for it in a stream.
            await self._write(http, response, encode_event(error.body()) + DONE)
            raise StreamFailed(response, client_closed=False) from error
        return response

    async def _write(self, http: web.Request, response: web.StreamResponse, data: bytes) -> None:
        if not data:
            return
        try:
            async with asyncio.timeout(self._limits.write_seconds):
                await response.write(data)
        except (ConnectionError, TimeoutError) as error:
            # A client that is there but does not read would hold the connection for ever.
            if http.transport is not None:
                http.transport.abort()
            raise StreamFailed(response, client_closed=True) from error

    async def _compute(self, size: int, work: Callable[[], _Result]) -> _Result:
        """Do it here if it is about a short body, or in a thread, so that the event loop goes on."""
        if size <= self._limits.thread_bytes:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def _detokenizer(self) -> Detokenizer:
        tokenizer = self._preparer.namer.tokenizer
        return TokenizerDetokenizer(tokenizer.tokenizer) if tokenizer else WordDetokenizer()


class StreamFailed(Exception):
    """A stream ended early, its client gone or sent an error event. `response` is what was sent."""

    def __init__(self, response: web.StreamResponse, *, client_closed: bool) -> None:
        super().__init__("the stream ended early")
        self.response = response
        self.client_closed = client_closed


async def _pieces(lease: Lease, choices: list[Choice]) -> AsyncIterator[dict[int, str]]:
    """Yield, for each step or several, the new text of choices by index; until all are finished."""
    while any(choice.finish is None for choice in choices):
        pieces: dict[int, str] = {}
        for index, output in await lease.outputs():
            choice = choices[index]
            if choice.finish:
                continue
            pieces[index] = pieces.get(index, "") + choice.feed(output)
            if choice.finish in (Finish.ERROR, Finish.ABORT):
                raise _failure(choice.finish)
            if choice.finish and not output.finish:
                # A stop string was found: what the engine would still compute is of no use.
                lease.stop(index)
        yield pieces


def _failure(finish: Finish) -> ApiError:
    if finish is Finish.ABORT:
        return ApiError(
            503, "the replica is shutting down", source=Source.REPLICA, code="shutting_down", ran=True
        )
    return ApiError(500, "the replica failed to compute this", source=Source.REPLICA, code="engine_error")
