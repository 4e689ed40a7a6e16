"""Which headers cross the router, in both directions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from random import getrandbits

from router.http.headers import Field, Headers
from router.http.request import Request
from router.placement.ask import Choice
from router.wire.report import ORCA_HEADER, ORCA_REQUEST_HEADER

REQUEST_ID_HEADER = "x-request-id"

# RFC 9110, 7.6.1: these, and what Connection names, end at each hop.
_HOP_BY_HOP = frozenset(
    (
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    )
)
# Set anew for the replica: the body is plain and whole by then, and the answer must stay readable.
_REWRITTEN = frozenset(
    (
        "host",
        "content-length",
        "content-encoding",
        "accept-encoding",
        "expect",
        "x-forwarded-for",
        "x-forwarded-host",
        REQUEST_ID_HEADER,
    )
)
# The router's own frame, or told by it in its own words.
_REFRAMED = frozenset(("content-length", "server", "date", REQUEST_ID_HEADER, ORCA_HEADER))
# Words among gateways and engines: a client that sends them would steer what is not its own.
_INTERNAL = re.compile(
    r"x-kvring-|x-gateway-|x-envoy-|x-data-parallel-rank$|x-vllm-|x-smg-|"
    + re.escape(ORCA_REQUEST_HEADER)
    + "$"
)
# The router's keys, where it asks for any: a replica has no use for them.
_KEYS = frozenset((b"authorization", b"x-api-key"))
_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")
# What the router asks of replicas in every request.
_ASKED = b"accept-encoding: identity\r\n%b: text\r\n" % ORCA_REQUEST_HEADER.encode()
# Names of headers come from outside: so many are remembered.
_NAMES = 4096


def request_id_of(headers: Mapping[str, str]) -> str:
    """Return the client's request id where it is fit to be logged and sent on, else a new one."""
    return fit_request_id(headers.get(REQUEST_ID_HEADER, "").encode("latin-1", "replace"))


def fit_request_id(given: bytes | None) -> str:
    """Return an id that a client gave where it is fit to be logged and sent on, else a new one."""
    return given.decode() if given and _REQUEST_ID.fullmatch(given) else f"{getrandbits(128):032x}"


def towards_replica(
    request: Request, request_id: str, keep_keys: bool, context: Mapping[str, str] | None = None
) -> bytes:
    """Return the lines of headers that go with a request to any replica: all but its Host and length.

    `context` is a trace's, in place of the client's.
    """
    headers = request.headers
    fields = headers.bytes
    named = _named_in_connection(headers)
    lines = [
        b"%b: %b\r\n" % field
        for field in headers.fields
        if _goes_on(field[0]) and field[0] not in named and (keep_keys or field[0] not in _KEYS)
    ]
    if context is not None:
        lines = [line for line in lines if not line.startswith((b"traceparent:", b"tracestate:"))]
        lines += [f"{name}: {value}\r\n".encode("latin-1") for name, value in context.items()]
    host = fields.get(b"host")
    if host:
        lines.append(b"x-forwarded-host: %b\r\n" % host)
    if request.remote:
        hops = [value for name, value in headers.fields if name == b"x-forwarded-for"]
        lines.append(b"x-forwarded-for: %b\r\n" % b", ".join((*hops, request.remote.encode())))
    lines.append(b"x-request-id: %b\r\n" % request_id.encode())
    lines.append(_ASKED)
    return b"".join(lines)


def towards_client(headers: Headers) -> list[Field]:
    """Return the headers of a replica's answer that the client may see; the router frames the body anew."""
    named = _named_in_connection(headers)
    return [field for field in headers.fields if _comes_back(field[0]) and field[0] not in named]


def own_headers(request_id: str, choice: Choice, policy: str, tier: str, told: bool) -> dict[str, str]:
    """Return the headers that an answer gets from us; who served it only where that is to be `told`."""
    headers = {REQUEST_ID_HEADER: request_id}
    if told:
        headers["x-kvring-replica"] = choice.name
        headers["x-kvring-expected-tokens"] = str(choice.expected_tokens)
        headers["x-kvring-policy"] = policy
        if tier:
            headers["x-kvring-tier"] = tier
    return headers


def as_fields(headers: Mapping[str, str]) -> list[Field]:
    """Return headers as they are sent."""
    return [(_encoded(name), value.encode("latin-1", "replace")) for name, value in headers.items()]


@lru_cache(maxsize=_NAMES)
def _encoded(name: str) -> bytes:
    return name.encode("latin-1")


@lru_cache(maxsize=_NAMES)
def _goes_on(name: bytes) -> bool:
    # Some servers read _ as -: whoever writes one for the other means what must not cross.
    text = name.decode("latin-1").replace("_", "-")
    return text not in _HOP_BY_HOP and text not in _REWRITTEN and not _INTERNAL.match(text)


@lru_cache(maxsize=_NAMES)
def _comes_back(name: bytes) -> bool:
    text = name.decode("latin-1")
    return text not in _HOP_BY_HOP and text not in _REFRAMED and not text.startswith("x-kvring-")


def _named_in_connection(headers: Headers) -> frozenset[bytes]:
    value = headers.bytes.get(b"connection")
    if b"connection" in headers.repeated:
        value = b",".join(value for name, value in headers.fields if name == b"connection")
    if value is None or value in (b"keep-alive", b"close"):
        return frozenset()
    return frozenset(name.strip().lower() for name in value.split(b","))
