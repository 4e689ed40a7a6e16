"""A client's request, whole."""

from __future__ import annotations

import zlib

from router.http.headers import Headers
from router.wire.errors import ApiError

# What Content-Encoding may name; the window bits make zlib read gzip, or zlib's own format.
_INFLATED = {b"gzip": 31, b"x-gzip": 31, b"deflate": 15}


class Request:
    """One request. `path` is the target without its query, `remote` the client's address or None.

    `body` is as it came: it may have a Content-Encoding, see `inflated`. `refusal` is why the request cannot
    be served, for what the connection itself found: then there may be no body.
    """

    __slots__ = (
        "body",
        "headers",
        "http_1_0",
        "keep_alive",
        "method",
        "path",
        "refusal",
        "remote",
        "target",
    )

    def __init__(self, method: str, target: bytes, headers: Headers, remote: str | None) -> None:
        self.method = method
        self.aim_at(target)
        self.headers = headers
        self.remote = remote
        self.body = b""
        self.keep_alive = True
        self.http_1_0 = False
        self.refusal: ApiError | None = None

    def aim_at(self, target: bytes) -> None:
        """Take another target."""
        self.target = target
        self.path = target.partition(b"?")[0].decode("latin-1")

    @property
    def size(self) -> int:
        """Bytes of its target and headers."""
        return len(self.target) + sum(len(name) + len(value) + 4 for name, value in self.headers.fields)


def inflated(body: bytes, encoding: bytes, limit_bytes: int) -> bytes:
    """Return a body as it was before its Content-Encoding; ApiError 413 over the limit, else 415 or 400.

    Few bytes may become many: not for the event loop.
    """
    encoding = encoding.strip().lower()
    if encoding in (b"", b"identity"):
        return body
    bits = _INFLATED.get(encoding)
    if bits is None:
        raise ApiError(415, f"the body's encoding {encoding[:40]!r} is not supported: send gzip or deflate")
    if encoding == b"deflate" and body[:1] and body[0] & 0x0F != 8:
        # Not zlib's format: the raw stream that some clients mean by it.
        bits = -15
    inflate = zlib.decompressobj(bits)
    try:
        plain = inflate.decompress(body, limit_bytes + 1)
    except zlib.error as error:
        raise _broken() from error
    if len(plain) > limit_bytes:
        raise too_large(limit_bytes)
    if not inflate.eof:
        raise _broken()
    return plain


def too_large(limit_bytes: int) -> ApiError:
    """Return the error for a body over the limit."""
    return ApiError(413, f"the body is larger than {limit_bytes} bytes", code="request_too_large")


def _broken() -> ApiError:
    return ApiError(400, "the body cannot be read: it is cut, or not encoded as it says")
