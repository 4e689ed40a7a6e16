"""Streams that others go on with: nobody begins twice for silence, and what is counted is the successor's."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web

from router.fleet.replica import Replica
from router.wire.sse import DONE, encode_event
from tests.router.gateway.relayed import STREAM, home_of
from tests.router.scripted import Handler, Rig, rig, until


def _event(delta: dict[str, str], finish: str | None = None, **fields: Any) -> bytes:
    """One event of a replica of ours, written as it does."""
    choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
    return encode_event(orjson.dumps({"id": "x", "choices": choices, **fields}))


_ROLE = _event({"role": "assistant", "content": ""})
_SALT = _event({"content": "Salt "}, token_ids=[5])
_USAGE = {
    "prompt_tokens": 40,
    "completion_tokens": 2,
    "prompt_tokens_details": {"cached_tokens": 0, "evicted_tokens": 0},
}
_WATER = (
    _event({"content": "water."}, "stop", token_ids=[6])
    + encode_event(orjson.dumps({"id": "x", "choices": [], "usage": _USAGE}))
    + DONE
)

_End = Callable[[web.Request], Awaitable[None]]


def _streaming(events: list[bytes], end: _End) -> Handler:
    """Send these events, and come to an end by `end`."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in events:
            await response.write(event)
        await end(request)
        return response

    return answer


async def _whole(request: web.Request) -> None:
    """End as it should."""


async def _broken(request: web.Request) -> None:
    assert request.transport is not None
    request.transport.close()


async def _silent(request: web.Request) -> None:
    await until(lambda: request.transport is None)


_GOING_ON = _streaming([_WATER], _whole)


def _member(up: Rig, name: str) -> Replica:
    member = up.router.fleet.by_name(name)
    assert member is not None
    return member


async def _read(up: Rig) -> tuple[bytes, bool]:
    """Return what comes of a stream, and whether it ended cleanly."""
    received = b""
    async with up.session.post(f"{up.router.address}/v1/chat/completions", json=STREAM) as response:
        assert response.status == 200
        try:
            async for data in response.content.iter_any():
                received += data
        except aiohttp.ClientPayloadError:
            return received, False
    return received, True


async def _asked(up: Rig) -> int:
    return sum(len(replica.bodies) for replica in up.replicas)


def _hung(up: Rig) -> _End:
    """The replica is found hung."""

    async def end(request: web.Request) -> None:
        (member,) = (one for one in up.router.fleet.replicas if str(request.url.port) in one.url)
        for call in list(member.stall.watchers):
            call()
        await _silent(request)

    return end


@pytest.mark.parametrize("kind", ["silent", "hung"])
@pytest.mark.parametrize("first", [b": wait\n\n", _ROLE])
async def test_who_says_nothing_may_compute_all_of_it(kind: str, first: bytes) -> None:
    async with rig(3, limits={"first_byte_seconds": 0.3, "idle_seconds": 0.3}) as up:
        for replica in up.replicas:
            replica.answer = _streaming([first], _silent if kind == "silent" else _hung(up))
        received, clean = await _read(up)
        assert not clean
        assert b'"code":"replica_lost"' in received
        assert await _asked(up) == 1
        assert await up.metric("kvring_continued_streams_total", result="failed") == 1


@pytest.mark.parametrize("kind", ["silent", "hung"])
async def test_what_the_client_has_begun_to_read_is_gone_on_with(kind: str) -> None:
    async with rig(2, limits={"first_byte_seconds": 0.3, "idle_seconds": 0.3}) as up:
        home = await home_of(up)
        for replica in up.replicas:
            replica.answer = _GOING_ON
        up.replica(home).answer = _streaming([_ROLE, _SALT], _silent if kind == "silent" else _hung(up))
        received, clean = await _read(up)
        assert clean
        assert received.count(b"Salt ") == received.count(b"water.") == received.count(b"[DONE]") == 1
        # Its connection has ended, and its work with that.
        await until(lambda: up.replica(home).running == 0)


async def test_a_successor_that_says_nothing_is_no_reason_to_begin_a_third_time() -> None:
    async with rig(3, limits={"first_byte_seconds": 0.3}) as up:
        home = await home_of(up)

        async def hang(request: web.Request) -> web.StreamResponse:
            await _silent(request)
            return web.Response()

        for replica in up.replicas:
            replica.answer = hang
        up.replica(home).answer = _streaming([_ROLE], _broken)
        _, clean = await _read(up)
        assert not clean
        assert await _asked(up) == 3
        assert len(up.replica(home).bodies) == 2


@pytest.mark.parametrize("events", [[], [_ROLE], [_ROLE, _SALT]])
@pytest.mark.parametrize("headers", [False, True])
async def test_a_stream_that_ends_replicas_runs_on_two(events: list[bytes], headers: bool) -> None:
    async def die(request: web.Request) -> web.StreamResponse:
        await _broken(request)
        return web.Response()

    async with rig(4, limits={"attempts": 4}) as up:
        home = await home_of(up)
        for replica in up.replicas:
            replica.answer = _streaming([], _broken) if headers else die
        up.replica(home).answer = _streaming(events, _broken)
        _, clean = await _read(up)
        assert not clean
        assert await _asked(up) == 3


async def test_successors_are_asked_eight_in_all() -> None:
    async with rig(11, limits={"attempts": 16}, fleet={"failures_to_suspect": 100}) as up:
        for replica in up.replicas:
            replica.answer = _streaming([_ROLE, _SALT], _broken)
        _, clean = await _read(up)
        assert not clean
        assert await _asked(up) == 8


async def test_a_full_replica_goes_on_where_no_other_can() -> None:
    async with rig(3, limits={"replica_requests": 4}, fleet={"failures_to_suspect": 100}) as up:
        home = await home_of(up)
        one, other = (replica for replica in up.replicas if replica.name != home)
        up.replica(home).answer = _streaming([_ROLE, _SALT], _broken)
        one.answer = other.answer = _GOING_ON
        for full, free in ((one, other), (other, one)):
            leases = [_member(up, full.name).load.open(0.0, 0.0) for _ in range(4)]
            before = len(free.bodies)
            assert (await _read(up))[1]
            assert len(free.bodies) == before + 1
            for lease in leases:
                _member(up, full.name).load.close(lease)
        for full in (one, other):
            for _ in range(4):
                _member(up, full.name).load.open(0.0, 0.0)
        assert (await _read(up))[1]


@pytest.mark.parametrize("fault", ["500", "garbled", "vanished"])
async def test_faults_of_successors_count_as_those_of_others(fault: str) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        if fault == "500":
            return web.json_response({"error": {}}, status=500)
        if fault == "garbled":
            request.transport.write(b"what\r\n\r\n")
        request.transport.close()
        return web.Response()

    async with rig(2, fleet={"failures_to_suspect": 1, "state_poll_seconds": 5}) as up:
        home = await home_of(up)
        (other,) = (replica for replica in up.replicas if replica.name != home)
        other.answer = answer
        up.replica(home).answer = _streaming([_ROLE, _SALT], _broken)
        assert not (await _read(up))[1]
        assert len(other.bodies) == 1
        assert not _member(up, other.name).usable


@pytest.mark.parametrize("events", [[], [_ROLE, _SALT]])
async def test_what_is_expected_missed_and_learned_is_the_successors(
    events: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    async with rig(2, observe={"access_log": True}) as up:
        home = await home_of(up)
        expected = (await up.post())[2].headers["x-kvring-expected-tokens"]
        (other,) = (replica for replica in up.replicas if replica.name != home)
        other.answer = _GOING_ON if events else _streaming([_ROLE, _SALT, _WATER], _whole)
        up.replica(home).answer = _streaming(events, _broken)
        with caplog.at_level(logging.INFO):
            assert (await _read(up))[1]
        (line,) = (text for text in caplog.messages if f" replica={other.name} " in text)
        assert " result=ok " in line
        assert " hit_tokens=0 " in line
        # What all may hold by now, not what the first one did.
        assert int(line.split(" expected_tokens=")[1].split()[0]) < int(expected)
        assert not [text for text in caplog.messages if "nobody can tell" in text]
        causes = line.split(" misses=")[1].split()[0]
        assert sum(int(part.split(":")[1]) for part in causes.split(",")) == 40
        assert "routed_by_membership:32" in causes
        # The next turn is expected where the last one was computed.
        await up.replica(home).stop()
        other.answer = None
        answer = (await up.post())[2]
        assert answer.headers["x-kvring-expected-tokens"] == expected
        assert answer.headers["x-kvring-replica"] == other.name
