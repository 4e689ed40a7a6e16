"""The Kubernetes API server: where it is, who we are to it, a list or watch of EndpointSlices."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import re
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import orjson

from router.config import KubernetesOptions

# A slice of 1,000 endpoints is some 500 KB, and a fleet is not much more than one.
_MOST_BYTES = 8 * 1024 * 1024
_MOST_ERROR_BYTES = 64 * 1024
_CONNECT_SECONDS = 10.0
_LIST_SECONDS = 30.0
# The server ends a watch in time; one that it has not ended so much later is dead.
_MARGIN_SECONDS = 5.0
_LONGEST_RETRY_AFTER_SECONDS = 60.0
_DNS_LABEL = re.compile(r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")


class ExpiredError(Exception):
    """The server has forgotten what came after the version asked for: only a new list tells what is gone."""


class ApiServerError(Exception):
    """The server's answer is of no use. `reason` is the kind, `wait_seconds` what it asked us to wait."""

    def __init__(self, reason: str, detail: str = "", wait_seconds: float = 0) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail
        self.wait_seconds = wait_seconds


class ApiServer:
    """Asks for the slices of one Service. ValueError where the options or the pod do not tell whom to ask."""

    def __init__(self, options: KubernetesOptions, environment: Mapping[str, str] = os.environ) -> None:
        self._options = options
        self.url = options.url.rstrip("/") or _told_to_pods(environment)
        self.namespace = options.namespace or _own_namespace(options.token_file)
        for what, name in (("service", options.service), ("namespace", self.namespace)):
            if not _DNS_LABEL.match(name):
                raise ValueError(f"fleet.kubernetes.{what} is no name in Kubernetes: {name!r}")

    @asynccontextmanager
    async def session(self) -> AsyncIterator[aiohttp.ClientSession]:
        """Connections to the server; the CA file is read for each session, as it may be replaced."""
        connector = aiohttp.TCPConnector(ssl=self._trust(), socket_factory=_watched_socket)
        # Redirects and environment proxies must not see the token; nothing is compressed, so limits hold.
        headers = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "kvring-router"}
        async with aiohttp.ClientSession(connector=connector, trust_env=False, headers=headers) as session:
            yield session

    async def list(self, session: aiohttp.ClientSession) -> tuple[Sequence[object], str]:
        """Return all slices and the version they are of, as the server's store has them now."""
        timeout = aiohttp.ClientTimeout(total=_LIST_SECONDS, connect=_CONNECT_SECONDS)
        async with self._get(session, "list", {}, timeout) as response:
            body = await _bounded(response.content, _MOST_BYTES)
        if body is None:
            raise ApiServerError("a list is too large", f"over {_MOST_BYTES} bytes")
        listed = _json(body)
        metadata = listed.get("metadata")
        version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
        # An empty list is null where the server is written in Go.
        items = listed.get("items") or []
        if not isinstance(items, list) or not isinstance(version, str) or not version:
            raise ApiServerError("a list is not one")
        return items, version

    @asynccontextmanager
    async def watch(
        self, session: aiohttp.ClientSession, version: str
    ) -> AsyncIterator[AsyncIterator[tuple[str, object]]]:
        """Watch from `version` on; gives type and object of each event until the server ends it.

        ExpiredError where the version is too old, whether the server says so by its status or in an event.
        """
        longest = self._options.watch_seconds
        parameters = {
            "watch": "1",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(max(1, round(longest))),
        }
        deadline = asyncio.get_running_loop().time() + max(1, longest) + min(_MARGIN_SECONDS, longest)
        timeout = aiohttp.ClientTimeout(total=None, connect=_CONNECT_SECONDS)
        async with (
            self._get(session, "watch", parameters, timeout) as response,
            aclosing(_events(response.content, deadline)) as events,
        ):
            yield events

    @asynccontextmanager
    async def _get(
        self,
        session: aiohttp.ClientSession,
        verb: str,
        parameters: Mapping[str, str],
        timeout: aiohttp.ClientTimeout,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        url = f"{self.url}/apis/discovery.k8s.io/v1/namespaces/{self.namespace}/endpointslices"
        selector = {"labelSelector": f"kubernetes.io/service-name={self._options.service}"}
        for last in (False, True):
            async with asyncio.timeout(_LIST_SECONDS):
                response = await session.get(
                    url,
                    params={**selector, **parameters},
                    headers=self.identity(),
                    timeout=timeout,
                    allow_redirects=False,
                )
            async with response:
                # The token may have been replaced between reading and asking: once more, with the new one.
                if response.status == 401 and not last:
                    continue
                if response.status != 200:
                    raise await self._refusal(response, verb)
                yield response
                return

    async def _refusal(self, response: aiohttp.ClientResponse, verb: str) -> Exception:
        body = await _bounded(response.content, _MOST_ERROR_BYTES)
        try:
            status = _json(body or b"")
        except ApiServerError:
            status = {}
        if response.status == 410:
            return ExpiredError()
        detail = _one_line(status.get("message"))
        wait = response.headers.get("Retry-After", "")
        wait_seconds = min(float(wait), _LONGEST_RETRY_AFTER_SECONDS) if re.match(r"^\d{1,9}$", wait) else 0.0
        return ApiServerError(self._meaning(response.status, verb), detail, wait_seconds)

    def _meaning(self, status: int, verb: str) -> str:
        if status == 401:
            return f"it does not accept the token in {self._options.token_file} (401)"
        if status == 403:
            return (
                f"the service account may not {verb} EndpointSlices in namespace {self.namespace} (403);"
                ' it needs get, list and watch of "endpointslices" in the API group "discovery.k8s.io"'
            )
        if status == 404:
            return (
                f"it knows no EndpointSlices (404); is {self.url} a Kubernetes API server of 1.21 or later?"
            )
        return f"it answered {verb} with status {status}"

    def identity(self) -> dict[str, str]:
        """The header with the token, read anew for each request; none to cross a network in the clear."""
        if not self.url.startswith("https:") and not _is_loopback(urlsplit(self.url).hostname or ""):
            return {}
        try:
            words = self._options.token_file.read_text(errors="replace").split()
        except FileNotFoundError:
            # A proxy on this machine may speak for us.
            return {}
        return {"Authorization": f"Bearer {words[0]}"} if words else {}

    def _trust(self) -> ssl.SSLContext | bool:
        if not self.url.startswith("https:") or not self._options.ca_file.exists():
            return True
        return ssl.create_default_context(cafile=self._options.ca_file)


async def _events(content: aiohttp.StreamReader, deadline: float) -> AsyncGenerator[tuple[str, object], None]:
    async with aclosing(_lines(content, deadline)) as lines:
        async for line in lines:
            event = _json(line)
            thing = event.get("object")
            if event.get("type") == "ERROR":
                status = thing if isinstance(thing, dict) else {}
                if status.get("code") == 410 or status.get("reason") in ("Expired", "Gone"):
                    raise ExpiredError
                raise ApiServerError("it broke off a watch", _one_line(status.get("message")))
            yield str(event.get("type")), thing


async def _lines(content: aiohttp.StreamReader, deadline: float) -> AsyncGenerator[bytes, None]:
    """Cut lines, none over the limit; at the deadline they end as if the server had ended them."""
    held = bytearray()
    while True:
        try:
            # Around the reading alone: a timeout must not reach into whoever takes the lines.
            async with asyncio.timeout_at(deadline):
                chunk = await content.readany()
        except TimeoutError:
            return
        if not chunk:
            break
        *ended, rest = chunk.split(b"\n")
        for line in ended:
            held += line
            if held.strip():
                yield bytes(held)
            held.clear()
        held += rest
        if len(held) > _MOST_BYTES:
            raise ApiServerError("an event is too large", f"over {_MOST_BYTES} bytes")
    if held.strip():
        yield bytes(held)


async def _bounded(content: aiohttp.StreamReader, limit: int) -> bytes | None:
    """Read to the end; None where there is more than `limit` bytes."""
    held = bytearray()
    async for chunk in content.iter_any():
        held += chunk
        if len(held) > limit:
            return None
    return bytes(held)


def _json(raw: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise ApiServerError("it answered what is no JSON", str(error)) from error
    if not isinstance(value, dict):
        raise ApiServerError("it answered what is no JSON object")
    return value


def _one_line(message: object) -> str:
    """The server's words, fit for a line of a log."""
    text = " ".join(message.split()) if isinstance(message, str) else ""
    return "".join(letter for letter in text if letter.isprintable())[:300]


def _told_to_pods(environment: Mapping[str, str]) -> str:
    host = environment.get("KUBERNETES_SERVICE_HOST", "")
    port = environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise ValueError(
            "fleet.kubernetes.url is empty and this is no pod: KUBERNETES_SERVICE_HOST is not set"
        )
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def _own_namespace(token_file: Path) -> str:
    file = token_file.parent / "namespace"
    try:
        return file.read_text().strip()
    except OSError as error:
        raise ValueError(
            f"fleet.kubernetes.namespace is empty, and {file} cannot be read: {error}"
        ) from error


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _watched_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """A socket whose silent death is noticed within a minute, long before a watch would end by itself."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return made
