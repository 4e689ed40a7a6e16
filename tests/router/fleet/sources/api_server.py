"""A scripted Kubernetes API server on 127.0.0.1: lists and watches EndpointSlices, and fails as told."""

from __future__ import annotations

import asyncio
import copy
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from router.config import KubernetesOptions
from router.fleet.sources.endpoint_slices import EndpointSliceMembers
from tests.router.fleet.sources.following import until

NAMESPACE = "models"
SERVICE = "replicas"


def endpoint(
    address: str | None,
    uid: str = "",
    name: str = "",
    *,
    ready: bool | None = True,
    **conditions: bool | None,
) -> dict[str, Any]:
    """One endpoint of a slice: a pod, unless it has neither uid nor name; `conditions` as in the API."""
    told: dict[str, Any] = {
        "addresses": [address],
        "conditions": {"ready": ready, **conditions},
    }
    if uid or name:
        told["targetRef"] = {"kind": "Pod", "namespace": NAMESPACE, "name": name, "uid": uid}
    return told


def endpoint_slice(
    name: str, *endpoints: dict[str, Any], family: str = "IPv4", ports: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    """One slice of the Service, of one unnamed port 8000 unless told."""
    return {
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "labels": {"kubernetes.io/service-name": SERVICE},
        },
        "addressType": family,
        "ports": [{"name": "", "port": 8000, "protocol": "TCP"}] if ports is None else ports,
        "endpoints": list(endpoints),
    }


@dataclass(frozen=True)
class Asked:
    """One request: `verb` is list or watch."""

    verb: str
    path: str
    query: dict[str, str]
    authorization: str


class ScriptedApiServer:
    """Holds slices, and everything that happened to them since `oldest`, as an API server does."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[Asked] = []
        # Accepted tokens; None accepts everybody.
        self.tokens: set[str] | None = None
        # By verb, the status, headers and message of a refusal.
        self.refusals: dict[str, tuple[int, dict[str, str], str]] = {}
        # By verb, bytes that are answered with status 200 instead of the truth, once each.
        self.instead: dict[str, list[bytes]] = {}
        self.expires_by_status = False
        self.ends_watches = True
        self.version = 100
        self.oldest = 100
        self._slices: dict[str, dict[str, Any]] = {}
        self._events: list[tuple[int, bytes]] = []
        self._watches: dict[web.StreamResponse, asyncio.Queue[bytes | None]] = {}
        self._transports: dict[web.StreamResponse, asyncio.Transport] = {}

    def put(self, slice_: dict[str, Any]) -> None:
        """Add or change a slice."""
        name = slice_["metadata"]["name"]
        kind = "MODIFIED" if name in self._slices else "ADDED"
        self._slices[name] = copy.deepcopy(slice_)
        self._happened(kind, self._slices[name])

    def delete(self, name: str) -> None:
        """Delete a slice."""
        self._happened("DELETED", self._slices.pop(name))

    def put_two_pods(self) -> None:
        """Put pods r1 at 10.0.0.1 and r2 at 10.0.0.2 into slices a and b."""
        self.put(endpoint_slice("a", endpoint("10.0.0.1", "u1", "r1")))
        self.put(endpoint_slice("b", endpoint("10.0.0.2", "u2", "r2")))

    def lose(self, name: str) -> None:
        """Remove a slice so that no watch is told, then or later."""
        del self._slices[name]

    def forget(self) -> None:
        """Forget what has happened so far: watches from an older version on are refused as expired."""
        self._events.clear()
        self.oldest = self.version

    def bookmark(self) -> None:
        """Tell all watches the version of now."""
        self.version += 1
        metadata = {"resourceVersion": str(self.version), "creationTimestamp": None}
        self.send(_event("BOOKMARK", {"kind": "EndpointSlice", "metadata": metadata, "endpoints": None}))

    def send(self, raw: bytes) -> None:
        """Write these bytes to all watches."""
        for queue in self._watches.values():
            queue.put_nowait(raw)

    def end_watches(self) -> None:
        """End all watches as when their time is over."""
        for queue in self._watches.values():
            queue.put_nowait(None)

    def cut(self) -> None:
        """Break the connections of all watches."""
        for response in list(self._watches):
            self._transports[response].abort()

    async def watched(self, since: int = 0) -> None:
        """Wait until a watch is there that came after the first `since` of them."""
        await until(lambda: self.count("watch") > since and self.watching > 0)

    @property
    def watching(self) -> int:
        """How many watches there are now."""
        return len(self._watches)

    def count(self, verb: str) -> int:
        """How many requests of that verb have come."""
        return sum(asked.verb == verb for asked in self.asked)

    def options(self, directory: Path, **options: Any) -> KubernetesOptions:
        """Options of a source that asks this server, with a token in `directory`."""
        token = directory / "token"
        if not token.exists():
            token.write_text("first\n")
        told = {
            "service": SERVICE,
            "namespace": NAMESPACE,
            "url": self.url,
            "token_file": token,
            "ca_file": directory / "ca.crt",
        }
        return KubernetesOptions(**{**told, **options})

    def source(self, directory: Path, **options: Any) -> EndpointSliceMembers:
        """A source that asks this server."""
        return EndpointSliceMembers(self.options(directory, **options), {})

    def _happened(self, kind: str, slice_: dict[str, Any]) -> None:
        self.version += 1
        slice_["metadata"]["resourceVersion"] = str(self.version)
        thing = {"kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", **slice_}
        self._events.append((self.version, _event(kind, thing)))
        self.send(self._events[-1][1])

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a list or a watch."""
        verb = "watch" if request.query.get("watch") else "list"
        authorization = request.headers.get("Authorization", "")
        self.asked.append(Asked(verb, request.path, dict(request.query), authorization))
        if self.tokens is not None and authorization.removeprefix("Bearer ") not in self.tokens:
            return _status(401, "Unauthorized")
        if verb in self.refusals:
            status, headers, message = self.refusals[verb]
            return _status(status, message, headers)
        if self.instead.get(verb):
            return web.Response(body=self.instead[verb].pop(0), content_type="application/json")
        if verb == "watch":
            return await self._watch(request)
        # As a server in Go does: no items are null, and items carry no kind.
        body = {
            "metadata": {"resourceVersion": str(self.version)},
            "items": list(self._slices.values()) or None,
        }
        return web.json_response({"kind": "EndpointSliceList", "apiVersion": "discovery.k8s.io/v1", **body})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        since = int(request.query["resourceVersion"])
        if since < self.oldest and self.expires_by_status:
            return _status(410, "too old resource version")
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        if since < self.oldest:
            expired = {
                "kind": "Status",
                "code": 410,
                "reason": "Expired",
                "message": "too old resource version",
            }
            await response.write(_event("ERROR", expired))
            return response
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        for version, raw in self._events:
            if version > since:
                queue.put_nowait(raw)
        assert request.transport is not None
        self._watches[response] = queue
        self._transports[response] = request.transport
        if self.ends_watches:
            seconds = int(request.query["timeoutSeconds"])
            ending = asyncio.get_running_loop().call_later(seconds, queue.put_nowait, None)
        try:
            while (raw := await queue.get()) is not None:  # type: ignore[assignment]
                await response.write(raw)
        except ConnectionError:
            pass
        finally:
            if self.ends_watches:
                ending.cancel()
            del self._watches[response], self._transports[response]
        return response


def _event(kind: str, thing: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": thing}).encode() + b"\n"


def _status(code: int, message: str, headers: dict[str, str] | None = None) -> web.Response:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code}
    return web.json_response(body, status=code, headers=headers)


@asynccontextmanager
async def api_server(tls: ssl.SSLContext | None = None, port: int = 0) -> AsyncIterator[ScriptedApiServer]:
    """Run a server, at its `url`; over TLS where a context is given."""
    server = ScriptedApiServer()
    application = web.Application()
    path = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"
    application.router.add_get(path, server.answer)
    runner = web.AppRunner(application, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls).start()
    server.url = f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()
