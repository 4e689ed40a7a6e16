"""Errors as OpenAI's clients read them, with their source and whether a retry can help."""

from __future__ import annotations

from enum import StrEnum

import orjson


class Source(StrEnum):
    """Who is at fault."""

    CLIENT = "client"
    ROUTER = "router"
    REPLICA = "replica"


# Back-pressure: the replica did not take the request, so another may. It says nothing about its health.
TURNED_AWAY = (429, 503)
RAN_HEADER = "x-kvring-ran"

# The `type` that OpenAI-compatible clients expect with a status.
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "invalid_request_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    502: "upstream_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class ApiError(Exception):
    """An error that is answered to the client: status, OpenAI's body, and headers that steer its retries."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        source: Source = Source.CLIENT,
        code: str | None = None,
        param: str | None = None,
        retry_after_seconds: int | None = None,
        tried: bool = False,
        ran: bool = False,
    ) -> None:
        """`tried` says that the router has retried already, so that the client should not multiply it.

        `ran` says that a replica had begun to compute the answer, so that another would do it once more.
        """
        super().__init__(message)
        self.status = status
        self.message = message
        self.source = source
        self.code = code
        self.param = param
        self.retry_after_seconds = retry_after_seconds
        self.tried = tried
        self.ran = ran

    def headers(self) -> dict[str, str]:
        """Return the headers that go with the error."""
        headers = {}
        if self.retry_after_seconds is not None:
            headers["Retry-After"] = str(self.retry_after_seconds)
        if self.tried:
            headers["x-should-retry"] = "false"
        if self.ran:
            headers[RAN_HEADER] = "true"
        return headers

    def body(self) -> bytes:
        """Return the error as OpenAI's JSON."""
        return error_body(self.status, self.message, code=self.code, param=self.param)


def error_body(status: int, message: str, *, code: str | None = None, param: str | None = None) -> bytes:
    """Return OpenAI's error object for a status."""
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}})
