"""What a request's head must say, so that nobody takes its end, or whom it is for, otherwise."""

from __future__ import annotations

from router.http.headers import Headers
from router.http.request import too_large
from router.wire.errors import ApiError


def framing_fault(headers: Headers, http_1_0: bool) -> ApiError | None:
    """Say why nobody should guess where this request ends, or for whom it is: others may guess otherwise."""
    fields = headers.bytes
    coding = fields.get(b"transfer-encoding")
    if coding is not None:
        if b"content-length" in fields:
            return ApiError(400, "a request has a Content-Length or a Transfer-Encoding, not both")
        if coding.strip().lower() != b"chunked" or headers.count(b"transfer-encoding") > 1:
            return ApiError(501, "the only Transfer-Encoding that is understood is chunked")
        if http_1_0:
            return ApiError(400, "HTTP/1.0 knows no Transfer-Encoding")
    elif b"content-length" in fields and headers.count(b"content-length") > 1:
        return ApiError(400, "a request has one Content-Length")
    if headers.count(b"host") > 1 or (b"host" not in fields and not http_1_0):
        return ApiError(400, "a request has one Host")
    if b"expect" in fields and fields[b"expect"].lower() != b"100-continue":
        return ApiError(417, "the only expectation that is understood is 100-continue")
    return None


def headers_too_large() -> ApiError:
    """Return the error for headers over the limit."""
    return ApiError(431, "the request's headers are too large")


def too_long(headers: Headers, limit_bytes: int) -> ApiError | None:
    """Return the error for a body that is announced as over the limit."""
    length = headers.bytes.get(b"content-length")
    return too_large(limit_bytes) if length is not None and int(length) > limit_bytes else None


def unreadable(error: Exception) -> ApiError:
    """Return the error for what the parser cannot read."""
    # It quotes what it choked on: its first line says what is wrong, without the quote.
    reason = str(error).strip().split("\n", 1)[0].rstrip(":")
    return ApiError(400, f"the request cannot be read: {reason[:200]}")
