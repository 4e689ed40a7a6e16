"""A gateway's side of the protocol, message by message, for what no Envoy can be made to do."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
from envoy.config.core.v3.base_pb2 import HeaderMap, HeaderValue
from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from envoy.service.ext_proc.v3.external_processor_pb2 import (
    HttpBody,
    HttpHeaders,
    HttpTrailers,
    ProcessingRequest,
    ProcessingResponse,
    ProtocolConfiguration,
)

DESTINATION = "x-gateway-destination-endpoint"
BODY = json.dumps(
    {"model": "m", "messages": [{"role": "user", "content": "Tell me of the sea. " * 9}]}
).encode()

Call = Any


@asynccontextmanager
async def channel_to(port: int) -> AsyncIterator[grpc.aio.Channel]:
    """A connection of a gateway."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel


def stream_on(channel: grpc.aio.Channel) -> Call:
    """Begin a request's stream."""
    method = channel.stream_stream(
        "/envoy.service.ext_proc.v3.ExternalProcessor/Process",
        request_serializer=ProcessingRequest.SerializeToString,
        response_deserializer=ProcessingResponse.FromString,
    )
    return method(None)


async def ended(call: Call) -> bool:
    """Read on; say whether this was the end. AioRpcError where the stream ended badly."""
    return not isinstance(await call.read(), ProcessingResponse)


def request_head(
    whole: bool = False,
    path: str = "/v1/chat/completions",
    duplex: bool = False,
    subset: Sequence[str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> ProcessingRequest:
    """The headers of a request, of which a body follows unless it is `whole`."""
    mode = ProcessingMode.FULL_DUPLEX_STREAMED if duplex else ProcessingMode.BUFFERED
    message = ProcessingRequest(
        request_headers=HttpHeaders(
            headers=_headers({":method": "POST", ":path": path, **(headers or {})}), end_of_stream=whole
        ),
        protocol_config=ProtocolConfiguration(request_body_mode=mode),
    )
    if subset is not None:
        fields = message.metadata_context.filter_metadata["envoy.lb.subset_hint"].fields
        fields[f"{DESTINATION}-subset"].list_value.extend(subset)
    return message


def body(data: bytes = BODY, end: bool = True) -> ProcessingRequest:
    """A body or a piece of one."""
    return ProcessingRequest(request_body=HttpBody(body=data, end_of_stream=end))


def request_trailers() -> ProcessingRequest:
    """What may follow a body."""
    return ProcessingRequest(request_trailers=HttpTrailers())


def response_head(status: int = 200, served: str = "", **headers: str) -> ProcessingRequest:
    """The headers of an answer, and who gave it."""
    message = ProcessingRequest(
        response_headers=HttpHeaders(headers=_headers({":status": str(status), **headers}))
    )
    if served:
        fields = message.metadata_context.filter_metadata["envoy.lb"].fields
        fields[f"{DESTINATION}-served"].string_value = served
    return message


def destination_of(response: ProcessingResponse) -> list[str]:
    """The addresses of a decision, told in the header and in the metadata alike."""
    kind = response.WhichOneof("response")
    common = getattr(response, kind).response
    told = {one.header.key: one.header.raw_value.decode() for one in common.header_mutation.set_headers}
    metadata = response.dynamic_metadata.fields["envoy.lb"].struct_value.fields[DESTINATION].string_value
    assert told[DESTINATION] == metadata
    assert common.clear_route_cache
    return str(metadata).split(",")


async def decided(
    call: Call, head: ProcessingRequest | None = None, sent: bytes = BODY
) -> ProcessingResponse:
    """Send a request whole, and return the decision on it."""
    await call.write(head or request_head())
    waits = await call.read()
    assert waits.WhichOneof("response") == "request_headers"
    await call.write(body(sent))
    response: ProcessingResponse = await call.read()
    return response


def _headers(headers: Mapping[str, str]) -> HeaderMap:
    return HeaderMap(
        headers=[HeaderValue(key=name, raw_value=value.encode()) for name, value in headers.items()]
    )
