"""Where a follower finds its engine: not there yet, connecting of itself, by IPv6, or nowhere."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any

import pytest

from replica.event_options import EventOptions
from replica.events import Changes, Cleared
from replica.publisher import ZmqPublisher
from tests.router.events.following import digest_of, following, heard, holds
from tests.router.events.publisher import Place, Publisher, prompt, stored, until


async def test_engines_that_connect_are_awaited() -> None:
    probe = Publisher(kept=0)
    endpoint = probe.place.endpoint
    probe.close()
    async with following(Place(f"@{endpoint}")) as follower:
        publisher = Publisher(kept=0, connect_to=endpoint)
        try:
            await until(lambda: follower.connected)
            await heard(publisher, follower)
            publisher.publish(stored(*prompt(1, 4)))
            await until(lambda: follower.counts.blocks == 4)
            assert await holds(follower, prompt(1, 4)[0])
        finally:
            publisher.close()
        await until(lambda: not follower.connected)


async def test_an_engine_that_is_not_there_yet_is_waited_for() -> None:
    probe = Publisher()
    place = probe.place
    probe.close()
    async with following(place) as follower:
        await asyncio.sleep(0.2)
        assert not follower.connected
        publisher = Publisher(at=place)
        try:
            publisher.publish(stored(*prompt(1, 4)))
            await until(lambda: follower.trusted and follower.counts.blocks == 4)
        finally:
            publisher.close()


@pytest.mark.parametrize("endpoint", ["nonsense", "tcp://", "quic://x:1"])
async def test_an_endpoint_that_is_none_is_told_and_survived(endpoint: str, caplog: Any) -> None:
    async with following(Place(endpoint)) as follower:
        await until(lambda: "cannot be followed" in caplog.text)
        assert await digest_of(follower) is None


async def test_who_is_long_without_an_engine_says_so_once_each_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("router.events.feed._ALONE_SECONDS", 0.3)
    probe = Publisher()
    place = probe.place
    probe.close()
    told = f"no publisher of KV events is there at {place.endpoint}"
    async with following(place) as follower:
        await until(lambda: told in caplog.text)
        publisher = Publisher(at=place)
        await until(lambda: follower.connected)
        # Not while it is there.
        await asyncio.sleep(0.6)
        assert caplog.text.count(told) == 1
        publisher.close()
        await until(lambda: caplog.text.count(told) == 2)
        await asyncio.sleep(0.6)
        assert caplog.text.count(told) == 2
    await asyncio.sleep(0.6)
    assert caplog.text.count(told) == 2


def _has_ipv6() -> bool:
    with suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", pytest.param("[::1]", marks=pytest.mark.skipif(not _has_ipv6(), reason="no ::1 here"))],
)
async def test_a_replica_at_all_its_addresses_is_heard_at_each(host: str) -> None:
    options = EventOptions(endpoint="tcp://*:0", replay_endpoint="tcp://*:0")
    publisher = ZmqPublisher(options, 16)
    publisher.start()
    try:
        place = Place(*(one.replace("*", host) for one in (publisher.endpoint, publisher.replay_endpoint)))
        publisher.put(Changes(0, 0.0, [Cleared()]))
        async with following(place) as follower:
            await until(lambda: follower.trusted and follower.batches == 1)
            publisher.put(Changes(1, 0.0, [Cleared()]))
            await until(lambda: follower.batches == 2)
            assert follower.gaps == 0
    finally:
        publisher.close()
