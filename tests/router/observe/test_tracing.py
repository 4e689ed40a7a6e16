"""Traces: contexts come in and go on, each step is a span, prompts are never told, nobody waits for them."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from typing import Any

import pytest
from aiohttp import web
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from router.config import TraceOptions
from router.observe.outcome import Outcome
from router.observe.tracing import Parent, start_tracing
from router.settings import SettingsError
from tests.router.observe.collector import Collector, attributes, collector
from tests.router.scripted import BODY, chunk, completion, rig, stream, until

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, UNSAMPLED = f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-00"
SECRET = "the launch code is 0000"


def tracing(to: Collector, ratio: float = 1.0, **observe: Any) -> dict[str, Any]:
    return {"access_log": False, "traces": {"endpoint": to.url, "sample_ratio": ratio}, **observe}


def headers(**more: str) -> dict[str, str]:
    return {"Content-Type": "application/json", **more}


async def streamed(request: web.Request) -> web.StreamResponse:
    usage = completion(prompt_tokens=40, cached_tokens=16, completion_tokens=3)["usage"]
    pieces = [chunk("Salt "), chunk("water"), chunk(None, "stop"), chunk(None, choices=[], usage=usage)]
    return await stream(request, [*pieces, b"data: [DONE]\n\n"])


@pytest.mark.parametrize(
    ("value", "parent"),
    [
        (SAMPLED, Parent(TRACE, SPAN, True)),
        (UNSAMPLED, Parent(TRACE, SPAN, False)),
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-brings", Parent(TRACE, SPAN, True)),
        (f"00-{TRACE}-{SPAN}-01-more", None),
        (f"ff-{TRACE}-{SPAN}-01", None),
        (f"00-{'0' * 32}-{SPAN}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE.upper()}-{SPAN}-01", None),
        (f"00-{TRACE}-{SPAN}", None),
        ("", None),
        ("0" * 10_000, None),
    ],
)
def test_a_context_is_read_as_the_recommendation_says(value: str, parent: Parent | None) -> None:
    assert Parent.of({"traceparent": value}) == parent


async def test_a_stream_is_told_step_by_step_under_its_callers_span() -> None:
    async with collector() as to, rig(2, observe=tracing(to, ratio=0.0)) as up:
        for replica in up.replicas:
            replica.answer = streamed
        body = BODY | {"stream": True, "messages": [{"role": "user", "content": SECRET}]}
        context = headers(traceparent=SAMPLED, tracestate="vendor=a:b,other=1", baggage="k=v")
        status, _, answer = await up.post(body, headers={**context, "x-request-id": "id-1"})
        assert status == 200
        await up.router.stop()
        (root,) = to.roots()
        assert (root.trace_id.hex(), root.parent_span_id.hex()) == (TRACE, SPAN)
        assert root.trace_state == "vendor=a:b,other=1"
        assert root.name == "chat m"
        assert root.status.code == Status.STATUS_CODE_UNSET
        named = attributes(root)
        served = answer.headers["x-kvring-replica"]
        assert named["gen_ai.operation.name"] == "chat"
        assert named["gen_ai.request.model"] == "m"
        assert named["gen_ai.request.stream"] is True
        assert named["gen_ai.usage.input_tokens"] == 40
        assert named["gen_ai.usage.output_tokens"] == 3
        assert named["gen_ai.usage.cache_read.input_tokens"] == 16
        assert named["gen_ai.response.time_to_first_chunk"] > 0
        assert named["http.response.status_code"] == 200
        assert named["kvring.replica"] == served
        assert named["kvring.request_id"] == "id-1"
        assert named["kvring.turn"] == 1
        assert (
            sum(tokens for name, tokens in named.items() if name.startswith("kvring.uncached_tokens.")) == 24
        )
        decision, first, rest = to.children(root)
        assert [span.name for span in (decision, first, rest)] == ["decision", "first_byte", "stream"]
        assert attributes(decision)["kvring.policy"] == "affinity"
        assert attributes(decision)["kvring.replica"] == served
        assert attributes(decision)["kvring.runner_up"] == ({"r0", "r1"} - {served}).pop()
        assert attributes(first) == {"kvring.replica": served, "kvring.attempt": 1}
        assert first.end_time_unix_nano <= rest.start_time_unix_nano
        assert rest.end_time_unix_nano <= root.end_time_unix_nano
        # The replica goes on below the attempt that reached it.
        (seen,) = up.replica(served).requests
        assert seen.headers["traceparent"] == f"00-{TRACE}-{first.span_id.hex()}-01"
        assert seen.headers["tracestate"] == "vendor=a:b,other=1"
        assert seen.headers["baggage"] == "k=v"
        assert to.resources[0]["service.name"] == "kvring-router"
        assert not any(SECRET in str(span) or "Salt" in str(span) for span in to.spans)


async def test_a_failover_is_a_span_with_its_reason() -> None:
    async with collector() as to, rig(2, observe=tracing(to)) as up:

        async def busy(request: web.Request) -> web.StreamResponse:
            return web.json_response({}, status=503)

        _, _, answer = await up.post()
        first = up.replica(answer.headers["x-kvring-replica"])
        first.answer = busy
        _, _, answer = await up.post()
        assert answer.headers["x-kvring-replica"] != first.name
        await up.router.stop()
        root = to.roots()[-1]
        failed, served = [span for span in to.children(root) if span.name == "first_byte"]
        assert attributes(failed)["kvring.failover_reason"] == "503"
        assert failed.status.code == Status.STATUS_CODE_ERROR
        assert attributes(failed)["kvring.replica"] == first.name
        assert attributes(served)["kvring.attempt"] == 2
        assert served.status.code == Status.STATUS_CODE_UNSET
        assert attributes(root)["kvring.attempts"] == 2
        assert root.status.code == Status.STATUS_CODE_UNSET


@pytest.mark.parametrize(("status", "failed"), [(500, True), (400, False)])
async def test_errors_have_their_type_and_only_ours_are_failures(status: int, failed: bool) -> None:
    async with collector() as to, rig(1, observe=tracing(to)) as up:

        async def failing(request: web.Request) -> web.StreamResponse:
            return web.json_response({}, status=status)

        up.replicas[0].answer = failing
        await up.post()
        await up.post(b"{")
        await up.router.stop()
        answered, refused = to.roots()
        assert attributes(answered)["error.type"] == ("replica_error" if failed else "client_error")
        assert (answered.status.code == Status.STATUS_CODE_ERROR) is failed
        # What nobody could read has no model.
        assert refused.name == "chat"
        assert attributes(refused)["error.type"] == "client_error"
        assert refused.status.code == Status.STATUS_CODE_UNSET


@pytest.mark.parametrize("state", ["UPPER case", "a=1,a=2", ",".join(f"k{n}=1" for n in range(40))])
async def test_a_bad_tracestate_is_dropped_and_never_logged(
    state: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with collector() as to, rig(1, observe=tracing(to)) as up:
        assert (await up.post(headers=headers(traceparent=SAMPLED, tracestate=state)))[0] == 200
        await up.router.stop()
        (root,) = to.roots()
        assert root.trace_id.hex() == TRACE
        assert not [record for record in caplog.records if record.name.startswith("opentelemetry")]


async def test_waiting_for_a_replica_is_a_span() -> None:
    limits = {"no_replica_wait_seconds": 10}
    async with collector() as to, rig(1, observe=tracing(to), limits=limits) as up:
        replica = up.replicas[0]
        replica.state_status = 503
        await until(lambda: not up.router.fleet.routable_count)
        waiting = asyncio.create_task(up.post())
        await until(lambda: up.router.gateway.held == 1)
        await asyncio.sleep(0.1)
        replica.state_status = 200
        status, _, _ = await waiting
        assert status == 200
        await up.router.stop()
        (root,) = to.roots()
        queue, decision, *_ = to.children(root)
        assert [queue.name, decision.name] == ["queue", "decision"]
        assert queue.end_time_unix_nano <= decision.start_time_unix_nano


async def test_who_is_not_sampled_is_not_recorded_and_the_replica_is_told_so() -> None:
    async with collector() as to, rig(1, observe=tracing(to, ratio=0.0)) as up:
        await up.post(headers=headers(traceparent=UNSAMPLED, tracestate="a=1"))
        await up.post(headers=headers(tracestate="orphan=1"))
        await up.router.stop()
        given, own = up.replicas[0].requests
        assert given.headers["traceparent"] == UNSAMPLED
        assert given.headers["tracestate"] == "a=1"
        assert own.headers["traceparent"].endswith("-00")
        assert Parent.of(own.headers)
        assert "tracestate" not in own.headers
        assert to.asked == 0


async def test_where_traces_are_off_headers_pass_as_they_came_and_the_log_has_the_trace(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with rig(1, observe={"access_log": True}) as up:
        with caplog.at_level(logging.INFO, "kvring.access"):
            await up.post(headers=headers(traceparent=SAMPLED, tracestate="a=1"))
            await up.post(headers=headers(traceparent="nonsense"))
            await up.post()
        given, nonsense, none = up.replicas[0].requests
        assert (given.headers["traceparent"], given.headers["tracestate"]) == (SAMPLED, "a=1")
        assert nonsense.headers["traceparent"] == "nonsense"
        assert "traceparent" not in none.headers
        assert [f"trace_id={TRACE}" in line for line in caplog.messages] == [True, False, False]


async def test_a_collector_that_is_down_costs_a_line_and_no_request(caplog: pytest.LogCaptureFixture) -> None:
    async with collector() as to, rig(1, observe=tracing(to)) as up:
        to.status = 400
        for _ in range(3):
            status, _, _ = await up.post()
            assert status == 200
            # Each is sent by itself: several sendings fail.
            await asyncio.to_thread(up.router._tracing._processor.force_flush)  # type: ignore[attr-defined]
        to.status = 200
        with caplog.at_level(logging.INFO, "kvring.traces"):
            await up.post()
            await up.router.stop()
        lines = [record for record in caplog.records if record.name.startswith(("kvring.traces", "opentele"))]
        assert [record.getMessage() for record in lines] == [
            "traces cannot be sent (not taken); they are dropped until they can",
            "traces are sent again",
        ]
        assert to.asked == 4
        assert len(to.roots()) == 1


async def test_closing_is_bounded_where_the_collector_never_answers(caplog: pytest.LogCaptureFixture) -> None:
    asked = asyncio.Event()
    gone = asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await gone.wait()
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    tracing = start_tracing(TraceOptions(endpoint=f"http://127.0.0.1:{port}", sample_ratio=1))
    tracing.begin({}, "/v1/completions", "id").ended(Outcome("id", "/v1/completions", 0.0))
    async with asyncio.timeout(20):
        await tracing.close()
    assert asked.is_set()
    assert caplog.messages == ["the last traces could not be sent within 3 s"]
    gone.set()
    server.close()


def test_without_the_extra_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "router.observe.otel", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(SettingsError, match=r"kvring\[otel\]"):
        start_tracing(TraceOptions(endpoint="http://127.0.0.1:1"))


def test_the_part_that_sends_is_not_even_imported_where_traces_are_off() -> None:
    program = (
        "import sys, router.app; from router.observe.tracing import start_tracing;"
        "from router.config import TraceOptions; start_tracing(TraceOptions());"
        "print('router.observe.otel' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == "False\n"


def test_an_endpoint_with_a_path_is_taken_as_it_is() -> None:
    for told, sent in (("http://c:4318", "/v1/traces"), ("http://c/", "/v1/traces"), ("http://c/x", "/x")):
        made = start_tracing(TraceOptions(endpoint=told))
        exporter = made._processor.span_exporter._sender  # type: ignore[attr-defined]
        assert exporter._endpoint.endswith(sent)
