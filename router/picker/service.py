"""The gRPC side: streams of gateways, each answered by an exchange, and all of them bounded."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import grpc
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest, ProcessingResponse

from router.config import RouterConfig
from router.picker.exchange import Exchange
from router.picker.parts import Parts

log = logging.getLogger("kvring.picker")

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"

# What a gateway may say beside a body in one message: headers and metadata.
_MESSAGE_SPARE_BYTES = 1024 * 1024
# Gateways that vanish without a word are noticed after this and the next.
_KEEPALIVE_MILLISECONDS = 30_000
_KEEPALIVE_TIMEOUT_MILLISECONDS = 10_000


class Service:
    """Answers the streams of gateways."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._exchanges: dict[Exchange, asyncio.Task[Any] | None] = {}
        self._leaving = False
        parts.metrics.in_flight.set_function(lambda: len(self._exchanges))

    @property
    def streams(self) -> int:
        """Open streams: requests held."""
        return len(self._exchanges)

    def let_go(self) -> None:
        """End streams as soon as their answers have begun, from now on.

        A gateway that fails closed cuts answers whose stream breaks off; those that end well run on.
        """
        self._leaving = True
        for exchange, task in self._exchanges.items():
            exchange.leaving = True
            if exchange.answering and task is not None:
                task.cancel()

    def handler(self) -> grpc.GenericRpcHandler[Any, Any]:
        """Return what a gRPC server is given."""
        process = grpc.stream_stream_rpc_method_handler(
            self._process,
            request_deserializer=ProcessingRequest.FromString,
            response_serializer=ProcessingResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(SERVICE, {"Process": process})

    async def _process(self, requests: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        limit = self._parts.serving().config.picker.streams
        exchange = Exchange(self._parts, _Stream(context), crowded=len(self._exchanges) >= limit)
        exchange.leaving = self._leaving
        self._exchanges[exchange] = asyncio.current_task()
        try:
            await exchange.run()
        except Exception:
            # The stream ends with an error: the gateway's failure mode decides what becomes of the request.
            log.exception("a request could not be decided")
            await context.abort(grpc.StatusCode.INTERNAL, "the picker failed")
        finally:
            del self._exchanges[exchange]


class _Stream:
    def __init__(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        self._context = context

    async def read(self) -> ProcessingRequest | None:
        message = await self._context.read()
        # Anything else is the mark of the end.
        return message if isinstance(message, ProcessingRequest) else None

    async def write(self, message: ProcessingResponse) -> None:
        await self._context.write(message)


def grpc_server(config: RouterConfig) -> grpc.aio.Server:
    """Return a server whose messages and streams are bounded."""
    return grpc.aio.server(
        options=(
            ("grpc.max_receive_message_length", config.limits.body_bytes + _MESSAGE_SPARE_BYTES),
            # A port that somebody has already is an error, not shared.
            ("grpc.so_reuseport", 0),
            ("grpc.keepalive_time_ms", _KEEPALIVE_MILLISECONDS),
            ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MILLISECONDS),
            # Streams of long answers are silent; so are gateways that ping.
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ),
        # Those beyond the limit are answered one by one; beyond twice of it, by nobody.
        maximum_concurrent_rpcs=2 * config.picker.streams,
    )


async def listen(
    server: grpc.aio.Server, host: str, port: int, credentials: grpc.ServerCredentials | None = None
) -> int:
    """Start a server, by TLS where there are `credentials`; return its port. OSError if it cannot have it."""
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        if credentials is None:
            bound = server.add_insecure_port(where)
        else:
            bound = server.add_secure_port(where, credentials)
    except RuntimeError as error:
        raise OSError(f"cannot listen on {where}: {error}") from error
    await server.start()
    return bound
