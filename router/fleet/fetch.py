"""Fetches what a replica tells: bounded in time and size, never redirected."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

import aiohttp
import orjson

from router.engines.answers import LARGEST_BODY_BYTES
from router.engines.engine import Answer

# One byte more than anybody reads, so that who reads it sees that it was too long.
_CUT_BYTES = LARGEST_BODY_BYTES + 1


# A wait that ends so much later than it should was prolonged here, by whatever kept the loop.
_DELAYED = 1.25


class Delayed(TimeoutError):
    """No answer was read in time, for want of time on this side."""


class Fetcher:
    """Fetches from one replica. `timeout_seconds` tells for how long one answer is waited for now."""

    def __init__(
        self, url: str, session: aiohttp.ClientSession, timeout_seconds: Callable[[], float]
    ) -> None:
        self.url = url
        self._session = session
        self._timeout_seconds = timeout_seconds

    async def get(self, path: str) -> Answer:
        """Return the replica's answer; aiohttp.ClientError or TimeoutError where there is none."""
        status, headers, body = await self.fetch(self.url + path, {})
        return Answer(status, headers.get("Content-Type", "").partition(";")[0].strip().lower(), body)

    async def fetch(self, url: str, headers: dict[str, str]) -> tuple[int, Mapping[str, str], bytes]:
        """Return status, headers and body, which is cut where nobody could want more; errors as above."""
        seconds = self._timeout_seconds()
        timeout = aiohttp.ClientTimeout(total=seconds)
        begun_at = monotonic()
        try:
            async with self._session.get(
                url, timeout=timeout, allow_redirects=False, headers=headers
            ) as response:
                body = bytearray()
                while len(body) < _CUT_BYTES and (
                    chunk := await response.content.read(_CUT_BYTES - len(body))
                ):
                    body += chunk
                return response.status, response.headers, bytes(body)
        except TimeoutError as error:
            if monotonic() - begun_at > _DELAYED * seconds:
                raise Delayed(str(error)) from error
            raise


def json_object(raw: bytes) -> dict[str, Any]:
    """Return the JSON object that was sent; ValueError where it is none."""
    body = orjson.loads(raw)
    if not isinstance(body, dict):
        raise ValueError("not a JSON object")
    return body
