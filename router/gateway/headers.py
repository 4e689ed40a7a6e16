"""Which headers cross the router, in both directions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from uuid import uuid4

from multidict import CIMultiDict

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
_REWRITTEN = frozenset(("host", "content-length", "content-encoding", "accept-encoding", "expect"))
# Words among gateways and engines: a client that sends them would steer what is not its own.
_INTERNAL = re.compile(
    r"x-kvring-|x-gateway-|x-envoy-|x-data-parallel-rank$|x-vllm-|x-smg-|"
    + re.escape(ORCA_REQUEST_HEADER)
    + "$"
)
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


def request_id_of(headers: Mapping[str, str]) -> str:
    """Return the client's request id where it is fit to be logged and sent on, else a new one."""
    given = headers.get(REQUEST_ID_HEADER, "")
    return given if _REQUEST_ID.fullmatch(given) else uuid4().hex


def towards_replica(headers: Mapping[str, str], remote: str | None, request_id: str) -> CIMultiDict[str]:
    """Return the headers that go with a request to a replica."""
    named = _named_in_connection(headers)
    sent = CIMultiDict(
        (name, value)
        for name, value in headers.items()
        if (lower := name.lower()) not in _HOP_BY_HOP
        and lower not in _REWRITTEN
        and lower not in named
        and not _INTERNAL.match(lower)
    )
    if "host" in headers:
        sent["X-Forwarded-Host"] = headers["host"]
    if remote:
        before = headers.get("x-forwarded-for")
        sent["X-Forwarded-For"] = f"{before}, {remote}" if before else remote
    sent[REQUEST_ID_HEADER] = request_id
    sent["Accept-Encoding"] = "identity"
    sent[ORCA_REQUEST_HEADER] = "text"
    return sent


def towards_client(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """Return the headers of a replica's answer that the client may see; the router frames the body anew."""
    named = _named_in_connection(headers)
    return CIMultiDict(
        (name, value)
        for name, value in headers.items()
        if (lower := name.lower()) not in _HOP_BY_HOP
        and lower not in named
        and lower not in ("content-length", "server", "date", REQUEST_ID_HEADER, ORCA_HEADER)
        and not lower.startswith("x-kvring-")
    )


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


def _named_in_connection(headers: Mapping[str, str]) -> frozenset[str]:
    return frozenset(name.strip().lower() for name in headers.get("connection", "").split(","))
