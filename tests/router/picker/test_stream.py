"""Streams of gateways that no Envoy would make, and the ends of streams that all do."""

from __future__ import annotations

import asyncio
import random

import grpc
import pytest

from tests.router.picker.gateway import (
    BODY,
    DESTINATION,
    Call,
    body,
    channel_to,
    decided,
    destination_of,
    ended,
    request_head,
    request_trailers,
    response_head,
    stream_on,
)
from tests.router.picker.rig import PickerRig, picker_rig
from tests.router.scripted import until


async def test_the_best_and_so_many_fallbacks_are_named() -> None:
    for fallbacks in (0, 1, 2, 9):
        async with picker_rig(picker={"fallbacks": fallbacks}) as rig, channel_to(rig.picker.port) as channel:
            named = destination_of(await decided(stream_on(channel)))
            assert len(named) == len(set(named)) == min(1 + fallbacks, 3)
            assert set(named) <= {rig.address(index) for index in range(3)}


async def test_a_subset_is_a_list_or_a_line_of_addresses_with_or_without_ports() -> None:
    async with picker_rig() as rig, channel_to(rig.picker.port) as channel:
        head = request_head(subset=[rig.address(2), rig.address(1)])
        assert set(destination_of(await decided(stream_on(channel), head))) == {
            rig.address(1),
            rig.address(2),
        }
        head = request_head(subset=["127.0.0.1"])
        assert len(destination_of(await decided(stream_on(channel), head))) == 3
        for nobody in ([], ["10.0.0.1"], ["10.0.0.1:8000"]):
            response = await decided(stream_on(channel), request_head(subset=nobody))
            assert response.immediate_response.status.code == 503


async def test_words_that_steer_are_taken_out_and_counted() -> None:
    async with picker_rig() as rig, channel_to(rig.picker.port) as channel:
        head = request_head(headers={DESTINATION: "10.0.0.1:1", "x-kvring-x": "1", "x-llm-d-priority": "9"})
        call = stream_on(channel)
        await call.write(head)
        waits = await call.read()
        # At once: whatever becomes of the picker before the body is here.
        taken_out = waits.request_headers.response.header_mutation.remove_headers
        assert set(taken_out) == {DESTINATION, "x-kvring-x"}
        await call.write(body())
        assert "10.0.0.1:1" not in destination_of(await call.read())
        assert rig.metric("kvring_picker_spoofed_headers_total") == 2


async def test_trailers_may_end_a_body_that_comes_in_pieces() -> None:
    async with picker_rig() as rig, channel_to(rig.picker.port) as channel:
        call = stream_on(channel)
        await call.write(request_head(duplex=True))
        await call.write(body(BODY[:50], end=False))
        await call.write(body(BODY[50:], end=False))
        await call.write(request_trailers())
        assert destination_of(await call.read())
        given_back = [
            (await call.read()).request_body.response.body_mutation.streamed_response for _ in range(2)
        ]
        assert b"".join(piece.body for piece in given_back) == BODY
        assert (await call.read()).WhichOneof("response") == "request_trailers"
        assert rig.served() == [0, 0, 0]


async def test_a_gateway_that_does_not_tell_headers_is_answered() -> None:
    async with picker_rig() as rig, channel_to(rig.picker.port) as channel:
        call = stream_on(channel)
        await call.write(response_head())
        assert (await call.read()).WhichOneof("response") == "response_headers"
        await call.done_writing()
        assert await ended(call)
        assert await call.code() is grpc.StatusCode.OK
        await rig.idle()


async def test_a_message_that_is_too_large_ends_its_stream_alone() -> None:
    async with picker_rig(limits={"body_bytes": 2048}) as rig, channel_to(rig.picker.port) as channel:
        call, other = stream_on(channel), stream_on(channel)
        assert destination_of(await decided(other))
        await call.write(request_head())
        await call.read()
        await call.write(body(b" " * 3_000_000))
        with pytest.raises(grpc.aio.AioRpcError):
            await _to_the_end(call)
        await until(lambda: rig.picker.service.streams == 1)
        await other.write(response_head())
        assert (await other.read()).WhichOneof("response") == "response_headers"
        other.cancel()
        await _nothing_left(rig)


async def test_an_answer_that_never_comes_gives_its_lease_back() -> None:
    async with (
        picker_rig(limits={"first_byte_seconds": 0.001}) as rig,
        channel_to(rig.picker.port) as channel,
    ):
        call = stream_on(channel)
        assert destination_of(await decided(call))
        assert rig.in_flight() == 1
        exchange = next(iter(rig.picker.service._exchanges))
        assert not exchange.answering
        async with asyncio.timeout(15):
            assert await ended(call)
        assert await call.code() is grpc.StatusCode.OK
        await _nothing_left(rig)
        assert rig.metric("kvring_requests_total", outcome="replica_error") == 1


async def test_an_answer_by_nobody_we_know_counts_on_nobody() -> None:
    async with picker_rig() as rig, channel_to(rig.picker.port) as channel:
        call = stream_on(channel)
        named = destination_of(await decided(call))
        await call.write(response_head(200, served="10.9.9.9:1"))
        await call.read()
        await call.done_writing()
        await _nothing_left(rig)
        assert rig.metric("kvring_failovers_total", reason="passed_over") == len(named)
        assert rig.metric("kvring_requests_total", replica="other", outcome="elsewhere") == 1


async def test_a_gateway_that_does_not_tell_who_served_is_believed_to_obey() -> None:
    async with picker_rig() as rig, channel_to(rig.picker.port) as channel:
        call = stream_on(channel)
        named = destination_of(await decided(call))
        await call.write(response_head())
        response = (await call.read()).response_headers.response
        told = {one.header.key: one.header.raw_value.decode() for one in response.header_mutation.set_headers}
        home = next(one for one in rig.replicas if one.url.endswith(named[0]))
        assert told["x-kvring-replica"] == home.name
        # But who failed may have been anybody.
        for _ in range(9):
            call = stream_on(channel)
            await decided(call)
            await call.write(response_head(500))
            await call.read()
        assert rig.picker.core.fleet.routable_count == 3


async def test_failed_answers_take_a_replica_out_and_mistakes_of_clients_do_not() -> None:
    slow = {"state_poll_seconds": 60, "idle_poll_seconds": 600, "failures_to_suspect": 3}
    async with picker_rig(fleet=slow) as rig, channel_to(rig.picker.port) as channel:
        for status, expected in ((400, 3), (429, 3), (503, 3), (500, 2)):
            for _ in range(4):
                call = stream_on(channel)
                named = destination_of(await decided(call, request_head(subset=[rig.address(0)])))
                await call.write(response_head(status, served=named[0]))
                await call.read()
                call.cancel()
                await rig.idle()
                if rig.picker.core.fleet.routable_count < 3:
                    break
            assert rig.picker.core.fleet.routable_count == expected


async def test_nothing_is_left_of_two_hundred_streams_that_break_off() -> None:
    chance = random.Random(4)
    async with picker_rig(limits={"body_seconds": 5}) as rig, channel_to(rig.picker.port) as channel:

        async def break_off() -> None:
            call = stream_on(channel)
            duplex = chance.random() < 0.5
            messages = [request_head(duplex=duplex)]
            if duplex:
                messages += [body(BODY[:70], end=False), body(BODY[70:])]
            else:
                messages += [body()]
            messages += [response_head()]
            for message in messages[: chance.randrange(len(messages) + 1)]:
                await call.write(message)
                if chance.random() < 0.5:
                    await asyncio.sleep(chance.random() * 0.02)
            if chance.random() < 0.3:
                await call.done_writing()
                await asyncio.sleep(chance.random() * 0.02)
            call.cancel()

        for _ in range(4):
            await asyncio.gather(*(break_off() for _ in range(50)))
        assert rig.metric("kvring_in_flight_requests") == rig.picker.service.streams
        await _nothing_left(rig)
        assert rig.metric("kvring_requests_total", outcome="client_closed") > 0


async def _to_the_end(call: Call) -> None:
    while not await ended(call):
        pass


async def _nothing_left(rig: PickerRig) -> None:
    await rig.idle()
    assert rig.in_flight() == 0
    assert rig.metric("kvring_in_flight_requests") == 0
    assert rig.metric("kvring_replica_in_flight_requests") == 0
    for replica in rig.picker.core.fleet.replicas:
        assert replica.load.view(0.0).own_work_seconds == 0
        assert replica.load.view(0.0).in_flight_tokens == 0
