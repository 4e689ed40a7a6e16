"""What the head of a message must say, so that nobody takes its end, or whom it is for, otherwise."""

from __future__ import annotations

import re
from functools import lru_cache

import httptools

from router.config import LimitOptions
from router.http.headers import Headers
from router.http.request import Request, too_large
from router.wire.errors import ApiError

_VERSIONS = ("1.1", "1.0")
# RFC 3986, 3.2.2 and 3.2.3: what names a host and a port.
_AUTHORITY = re.compile(rb"[A-Za-z0-9._~!$&'()*+,;=%:\[\]-]*")
_ABSOLUTE = re.compile(rb"https?://([^/?]*)(.*)", re.IGNORECASE)
_HOSTS = 1024


def read_head(
    parser: httptools.HttpRequestParser,
    target: bytes,
    headers: Headers,
    remote: str | None,
    most_bytes: float,
    limits: LimitOptions,
) -> Request:
    """Return the request whose head was parsed, refused where it is not fit.

    The head has at most `most_bytes`.
    """
    request = Request(parser.get_method().decode("ascii"), target, headers, remote)
    request.keep_alive = parser.should_keep_alive()
    version = parser.get_http_version()
    request.http_1_0 = version == "1.0"
    if most_bytes > limits.header_bytes and request.size > limits.header_bytes:
        request.refusal = headers_too_large()
    elif version not in _VERSIONS:
        request.refusal = ApiError(505, "the version of HTTP that is understood is 1.1")
    else:
        request.refusal = _fault(request, limits)
    return request


def answer_fault(status: int, version: str, headers: Headers) -> str | None:
    """Say why a replica's answer is not fit to be passed on: its end could be taken otherwise."""
    if version not in _VERSIONS:
        return "it is not of HTTP/1.1"
    if not 200 <= status <= 599:
        return f"there is no status {status}"
    coding = headers.bytes.get(b"transfer-encoding")
    if coding is not None and (
        coding.lower() != b"chunked"
        or version == "1.0"
        or b"transfer-encoding" in headers.repeated
        or b"content-length" in headers.bytes
    ):
        return "its Transfer-Encoding is not chunked and nothing else"
    return None


def headers_too_large() -> ApiError:
    """Return the error for headers over the limit."""
    return ApiError(431, "the request's headers are too large")


def unreadable(error: Exception) -> ApiError:
    """Return the error for what the parser cannot read."""
    # It quotes what it choked on: its first line says what is wrong, without the quote.
    reason = str(error).strip().split("\n", 1)[0].rstrip(":")
    return ApiError(400, f"the request cannot be read: {reason[:200]}")


def body_alone(request: Request) -> bytes:
    """Return a head that says where the request's body ends, and nothing else."""
    length = request.headers.bytes.get(b"content-length")
    framing = b"content-length: %b" % length if length is not None else b"transfer-encoding: chunked"
    return b"POST / HTTP/1.1\r\n%b\r\n\r\n" % framing


def _fault(request: Request, limits: LimitOptions) -> ApiError | None:
    """Say why nobody should guess where a request ends, or for whom it is: others may guess otherwise."""
    fields, repeated, http_1_0 = request.headers.bytes, request.headers.repeated, request.http_1_0
    coding, length = fields.get(b"transfer-encoding"), fields.get(b"content-length")
    if coding is not None:
        if length is not None:
            return ApiError(400, "a request has a Content-Length or a Transfer-Encoding, not both")
        if coding.lower() != b"chunked" or b"transfer-encoding" in repeated:
            return ApiError(501, "the only Transfer-Encoding that is understood is chunked")
        if http_1_0:
            return ApiError(400, "HTTP/1.0 knows no Transfer-Encoding")
    elif length is not None:
        if b"content-length" in repeated:
            return ApiError(400, "a request has one Content-Length")
        if int(length) > limits.body_bytes:
            return too_large(limits.body_bytes)
    host = fields.get(b"host")
    if (host is None and not http_1_0) or b"host" in repeated:
        return ApiError(400, "a request has one Host")
    if host is not None and not _names_a_host(host):
        return ApiError(400, "the Host names no host")
    if b"expect" in fields and fields[b"expect"].lower() != b"100-continue":
        return ApiError(417, "the only expectation that is understood is 100-continue")
    if request.target[:1] != b"/" or b"#" in request.target or request.method == "CONNECT":
        return _target_fault(request, host)
    return None


def _target_fault(request: Request, host: bytes | None) -> ApiError | None:
    """Aim the request at a path where it names that as proxies are told; else say why there is none."""
    if request.method == "CONNECT":
        return ApiError(501, "there are no tunnels through this router")
    if b"#" in request.target:
        return ApiError(400, "a request's target has no fragment")
    absolute = _ABSOLUTE.fullmatch(request.target)
    if absolute is not None:
        authority, rest = absolute.groups()
        if host is not None and authority.lower() != host.lower():
            return ApiError(400, "the request's target and its Host name different hosts")
        request.aim_at(rest if rest.startswith(b"/") else b"/" + rest)
    elif request.target != b"*" or request.method != "OPTIONS":
        return ApiError(400, "the request's target is no path")
    return None


@lru_cache(maxsize=_HOSTS)
def _names_a_host(host: bytes) -> bool:
    return _AUTHORITY.fullmatch(host) is not None
