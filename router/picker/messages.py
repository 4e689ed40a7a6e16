"""The words of ext_proc: what of Envoy's messages the picker reads, and the answers it gives.

Source: envoy/service/ext_proc/v3 and the endpoint picker protocol of the Gateway API Inference Extension.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from envoy.config.core.v3.base_pb2 import HeaderValue, HeaderValueOption
from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from envoy.service.ext_proc.v3.external_processor_pb2 import (
    BodyMutation,
    BodyResponse,
    CommonResponse,
    HeaderMutation,
    HeadersResponse,
    ImmediateResponse,
    ProcessingRequest,
    ProcessingResponse,
    StreamedBodyResponse,
    TrailersResponse,
)
from envoy.type.v3.http_status_pb2 import HttpStatus

from router.wire.errors import ApiError
from router.wire.report import ORCA_HEADER, ORCA_REQUEST_HEADER

DESTINATION = "x-gateway-destination-endpoint"
_SERVED = "x-gateway-destination-endpoint-served"
_SUBSET = "x-gateway-destination-endpoint-subset"
_NAMESPACE = "envoy.lb"
_SUBSET_NAMESPACE = "envoy.lb.subset_hint"

# What a client must not bring along: where requests go, and words among gateways and engines. Objectives and
# priorities (x-llm-d-*, x-gateway-inference-*) are not among them and pass untouched.
_STEERING = re.compile(r"x-gateway-destination-endpoint|x-kvring-|x-data-parallel-rank$|x-vllm-|x-smg-")
# What a replica tells its gateway and nobody else.
_CONFIDED = re.compile(rf"{re.escape(ORCA_HEADER)}$|x-kvring-")
_OVERWRITE = HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD


class BodyMode(Enum):
    """How the gateway sends a request's body: whole, piece by piece and back again, or in no way of use."""

    BUFFERED = "buffered"
    DUPLEX = "duplex"
    UNREAD = "unread"


class AnswerMode(Enum):
    """Whether the gateway sends an answer's body too, and wants its bytes back."""

    UNREAD = "unread"
    KEPT = "kept"
    DUPLEX = "duplex"


_MODES = {ProcessingMode.BUFFERED: BodyMode.BUFFERED, ProcessingMode.FULL_DUPLEX_STREAMED: BodyMode.DUPLEX}
_ANSWER_MODES = {
    ProcessingMode.NONE: AnswerMode.UNREAD,
    ProcessingMode.FULL_DUPLEX_STREAMED: AnswerMode.DUPLEX,
}


@dataclass(frozen=True, slots=True)
class Head:
    """A request as its headers tell it. `steering` are the names of those that a client must not send.

    `subset` are the addresses that the gateway restricts the choice to, None where it does not.
    """

    headers: Mapping[str, str]
    path: str
    whole: bool
    mode: BodyMode
    answer_mode: AnswerMode
    steering: tuple[str, ...]
    subset: frozenset[str] | None

    @classmethod
    def of(cls, message: ProcessingRequest) -> Head:
        """Read the first message of a stream."""
        headers = headers_of(message.request_headers.headers)
        # Gateways that do not tell their modes are older than the duplex one.
        mode, answer_mode = BodyMode.BUFFERED, AnswerMode.UNREAD
        if message.HasField("protocol_config"):
            mode = _MODES.get(message.protocol_config.request_body_mode, BodyMode.UNREAD)
            answer_mode = _ANSWER_MODES.get(message.protocol_config.response_body_mode, AnswerMode.KEPT)
        return cls(
            headers=headers,
            path=headers.get(":path", "").partition("?")[0],
            whole=message.request_headers.end_of_stream,
            mode=mode,
            answer_mode=answer_mode,
            steering=tuple(name for name in headers if _STEERING.match(name)),
            subset=_subset_of(message),
        )


def headers_of(headers: object) -> dict[str, str]:
    """Return headers by their name in lower case; of several of one name, the first."""
    found: dict[str, str] = {}
    for header in headers.headers:  # type: ignore[attr-defined]
        value = header.raw_value.decode("latin-1") if header.raw_value else header.value
        found.setdefault(header.key.lower(), value)
    return found


def _subset_of(message: ProcessingRequest) -> frozenset[str] | None:
    namespaces = message.metadata_context.filter_metadata
    if _SUBSET_NAMESPACE not in namespaces or _SUBSET not in namespaces[_SUBSET_NAMESPACE].fields:
        return None
    value = namespaces[_SUBSET_NAMESPACE].fields[_SUBSET]
    listed = [item.string_value for item in value.list_value.values] or value.string_value.split(",")
    return frozenset(address.strip() for address in listed if address.strip())


def served_by(message: ProcessingRequest) -> str:
    """Return the address that the gateway sent the request to, as far as it tells; else empty."""
    namespaces = message.metadata_context.filter_metadata
    if _NAMESPACE not in namespaces or _SERVED not in namespaces[_NAMESPACE].fields:
        return ""
    return str(namespaces[_NAMESPACE].fields[_SERVED].string_value)


def destined(kind: str, addresses: Sequence[str], head: Head) -> ProcessingResponse:
    """Answer a request's headers or body (`kind`) with where to send it, the best address first."""
    value = ",".join(addresses)
    mutation = HeaderMutation(
        set_headers=(_set(DESTINATION, value), _set(ORCA_REQUEST_HEADER, "text")),
        remove_headers=[name for name in head.steering if name != DESTINATION],
    )
    # Routes may match on the header that has just been set.
    common = CommonResponse(header_mutation=mutation, clear_route_cache=True)
    response = _about(kind, common)
    fields = response.dynamic_metadata.fields[_NAMESPACE].struct_value.fields
    fields[DESTINATION].string_value = value
    return response


def wait_for_body(head: Head) -> ProcessingResponse:
    """Answer a request's headers, of which nothing is decided yet."""
    return _about(
        "request_headers", CommonResponse(header_mutation=HeaderMutation(remove_headers=head.steering))
    )


def answered(headers: Mapping[str, str], own: Mapping[str, str], head: Head) -> ProcessingResponse:
    """Answer a response's headers: add `own`, and take out what replicas tell gateways only."""
    mutation = HeaderMutation(
        set_headers=[_set(name, value) for name, value in own.items()],
        remove_headers=[name for name in headers if _CONFIDED.match(name) and name not in own],
    )
    response = _about("response_headers", CommonResponse(header_mutation=mutation))
    if head.answer_mode is not AnswerMode.UNREAD:
        # Honoured where the gateway allows it; each chunk costs more than the whole decision otherwise.
        response.mode_override.response_header_mode = ProcessingMode.SEND
        response.mode_override.response_body_mode = ProcessingMode.NONE
        response.mode_override.response_trailer_mode = ProcessingMode.SKIP
    return response


def passed(message: ProcessingRequest, duplex: bool) -> ProcessingResponse:
    """Answer a message that changes nothing; `duplex` gives a body's bytes back, which Envoy did not keep."""
    kind = message.WhichOneof("request")
    if kind in ("request_trailers", "response_trailers"):
        return ProcessingResponse(**{kind: TrailersResponse()})
    if duplex and kind in ("request_body", "response_body"):
        body = getattr(message, kind)
        return _about(kind, CommonResponse(body_mutation=_given_back(body.body, body.end_of_stream)))
    return _about(kind, CommonResponse())


def refused(error: ApiError, request_id: str) -> ProcessingResponse:
    """Answer the client at once with an error, in OpenAI's shape."""
    headers = {"content-type": "application/json", "x-request-id": request_id, **error.headers()}
    return ProcessingResponse(
        immediate_response=ImmediateResponse(
            status=HttpStatus(code=error.status),
            headers=HeaderMutation(set_headers=[_set(name, value) for name, value in headers.items()]),
            body=error.body(),
            details=f"kvring_{error.code or error.status}",
        )
    )


def _about(kind: str, common: CommonResponse) -> ProcessingResponse:
    wrapped = HeadersResponse if kind.endswith("_headers") else BodyResponse
    return ProcessingResponse(**{kind: wrapped(response=common)})


def _given_back(body: bytes, end_of_stream: bool) -> BodyMutation:
    return BodyMutation(streamed_response=StreamedBodyResponse(body=body, end_of_stream=end_of_stream))


def _set(name: str, value: str) -> HeaderValueOption:
    header = HeaderValue(key=name, raw_value=value.encode("latin-1", "replace"))
    return HeaderValueOption(header=header, append_action=_OVERWRITE)
