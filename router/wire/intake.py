"""Intake: reads a request's body within its limits of size and time."""

from __future__ import annotations

import asyncio

from aiohttp import web

from router.wire.errors import ApiError


async def read_body(request: web.Request, limit_bytes: int, limit_seconds: float) -> bytes:
    """Return the whole body, inflated; ApiError 413 over the limit, 408 when too slow, 400 when broken."""
    too_large = ApiError(413, f"the body is larger than {limit_bytes} bytes", code="request_too_large")
    if (request.content_length or 0) > limit_bytes:
        raise too_large
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(limit_seconds):
            async for chunk in request.content.iter_any():
                size += len(chunk)
                if size > limit_bytes:
                    raise too_large
                chunks.append(chunk)
    except TimeoutError as error:
        raise ApiError(408, f"the body did not arrive within {limit_seconds:g} s") from error
    except web.RequestPayloadError as error:
        raise ApiError(400, "the body cannot be read: it is cut, or not encoded as it says") from error
    return b"".join(chunks)
