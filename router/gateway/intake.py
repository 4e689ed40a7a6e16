"""Intake: reads a request's body within its limits."""

from __future__ import annotations

import asyncio

from aiohttp import web

from router.config import LimitOptions
from router.wire.errors import ApiError


async def read_body(request: web.Request, limits: LimitOptions) -> bytes:
    """Return the whole body, inflated; ApiError 413 over the limit, 408 when it comes too slowly."""
    limit = limits.body_bytes
    too_large = ApiError(413, f"the body is larger than {limit} bytes", code="request_too_large")
    if (request.content_length or 0) > limit:
        raise too_large
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for chunk in request.content.iter_any():
                size += len(chunk)
                if size > limit:
                    raise too_large
                chunks.append(chunk)
    except TimeoutError as error:
        raise ApiError(408, f"the body did not arrive within {limits.body_seconds:g} s") from error
    except web.RequestPayloadError as error:
        raise ApiError(400, f"the body cannot be read: {error}") from error
    return b"".join(chunks)
