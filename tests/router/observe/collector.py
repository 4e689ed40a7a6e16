"""A receiver of OTLP over HTTP that keeps the spans it is sent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass
class Collector:
    """What was received; `status` is what it answers."""

    spans: list[Span] = field(default_factory=list)
    resources: list[dict[str, Any]] = field(default_factory=list)
    status: int = 200
    asked: int = 0
    url: str = ""

    async def take(self, request: web.Request) -> web.Response:
        self.asked += 1
        told = ExportTraceServiceRequest.FromString(await request.read())
        if self.status != 200:
            return web.Response(status=self.status)
        for resource in told.resource_spans:
            self.resources.append(_attributes(resource.resource.attributes))
            for scope in resource.scope_spans:
                self.spans += scope.spans
        return web.Response(
            body=ExportTraceServiceResponse().SerializeToString(), content_type="application/x-protobuf"
        )

    def roots(self) -> list[Span]:
        return [span for span in self.spans if span.kind == Span.SPAN_KIND_SERVER]

    def children(self, parent: Span) -> list[Span]:
        """The steps of a request, in order."""
        found = [span for span in self.spans if span.parent_span_id == parent.span_id]
        return sorted(found, key=lambda span: (span.start_time_unix_nano, span.end_time_unix_nano))


def attributes(span: Span) -> dict[str, Any]:
    return _attributes(span.attributes)


def _attributes(pairs: Any) -> dict[str, Any]:
    read: dict[str, Any] = {}
    for pair in pairs:
        kind = pair.value.WhichOneof("value")
        read[pair.key] = getattr(pair.value, kind) if kind else None
    return read


@asynccontextmanager
async def collector() -> AsyncIterator[Collector]:
    """Start one on a free port."""
    made = Collector()
    application = web.Application()
    application.router.add_post("/v1/traces", made.take)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield made
    finally:
        await runner.cleanup()
