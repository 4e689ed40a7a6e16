"""The frame around every handler: a request id, errors in OpenAI's shape, and an end to connections."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.typedefs import Middleware

from router.gateway.headers import REQUEST_ID_HEADER, request_id_of
from router.wire.errors import ApiError, error_body

log = logging.getLogger("kvring.gateway")

REQUEST_ID = web.RequestKey("request_id", str)

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def frame(draining: Callable[[], bool]) -> Middleware:
    """Return the middleware; while `draining`, connections are closed behind their answer."""

    @web.middleware
    async def framed(request: web.Request, handler: _Handler) -> web.StreamResponse:
        request[REQUEST_ID] = request_id_of(request.headers)
        response = await _answered(request, handler)
        if not response.prepared:
            response.headers.setdefault(REQUEST_ID_HEADER, request[REQUEST_ID])
            if draining():
                response.force_close()
        return response

    return framed


async def _answered(request: web.Request, handler: _Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except ApiError as error:
        return _error(error.status, error.body(), error.headers())
    except web.HTTPException as error:
        if error.status < 400:
            raise
        body = error_body(error.status, f"{request.method} {request.path[:200]}: {error.reason}")
        kept = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
        return _error(error.status, body, kept)
    except ConnectionResetError:
        # The client left: there is nobody to answer.
        raise
    except Exception:
        log.exception("request %s failed", request[REQUEST_ID])
        return _error(500, error_body(500, "the router failed"), {})


def _error(status: int, body: bytes, headers: dict[str, str]) -> web.Response:
    return web.Response(status=status, body=body, content_type="application/json", headers=headers)
