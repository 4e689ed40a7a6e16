"""aiohttp's server with errors in OpenAI's shape, also for what is no HTTP request at all."""

from __future__ import annotations

import logging
import sys
from http import HTTPStatus
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestHandler

from router.wire.errors import error_body

log = logging.getLogger("kvring.http")


class JsonErrorRunner(web.AppRunner):
    """Runs an application as web.AppRunner does, but answers unreadable requests with JSON, not text."""

    async def _make_server(self) -> web.Server:
        server = await super()._make_server()
        # aiohttp has no hook for the class that handles a connection.
        server.__class__ = _JsonErrorServer
        return server


class _JsonErrorServer(web.Server):
    def __call__(self) -> RequestHandler:
        handler = super().__call__()
        handler.__class__ = _JsonErrorHandler
        return handler


class _JsonErrorHandler(RequestHandler):
    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what the parser refused (400), or what escaped the application (500)."""
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun: no other can follow")
        if status >= 500:
            log.error("a fault while answering %s", request.method, exc_info=exc)
        # The parser quotes what it choked on: its first line says what is wrong, without the quote.
        reason = (message or HTTPStatus(status).phrase).strip().split("\n", 1)[0].rstrip(":")
        response = web.Response(
            status=status, body=error_body(status, reason), content_type="application/json"
        )
        response.force_close()
        return response

    def log_exception(self, *args: Any, **options: Any) -> None:
        """Log faults of ours. What a client sent broken is answered, and is no cause for a trace."""
        error = sys.exc_info()[1]
        if not isinstance(error, HttpProcessingError | web.RequestPayloadError):
            super().log_exception(*args, **options)
