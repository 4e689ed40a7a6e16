"""The connection: a breaker that spares Redis and its callers, one line for each change, no secrets told."""

from __future__ import annotations

import asyncio
import logging

import pytest
from pydantic import SecretStr

from router.shared.connection import Connection, Unreachable
from tests.redis_server import RedisServer, black_hole, read_only_server, redis_server

WRITE = ("EVAL", "redis.call('SET', KEYS[1], 'x') return redis.call('GET', KEYS[1])", 1, "{p}:k")


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def connection(url: SecretStr, clock: Clock, timeout_seconds: float = 0.5) -> Connection:
    return Connection(url, timeout_seconds, 5.0, clock, lambda: 1.0)


async def asked(one: Connection) -> bool:
    """Whether a command was answered."""
    async with asyncio.timeout(10):
        try:
            return bool(await one.ask(*WRITE) == b"x")
        except Unreachable:
            return False


async def test_a_dead_redis_is_asked_ever_more_seldom_and_found_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "kvring.shared")
    clock = Clock()
    async with redis_server() as server:
        one = connection(server.url, clock)
        assert (one.up, one.age_seconds) == (False, 0.0)
        assert await asked(one)
        clock.now += 60
        assert (one.age_seconds, one.up_seconds) == (60.0, 60.0)
        await server.kill()
        pauses = []
        for _ in range(8):
            assert not await asked(one)
            before = clock.now
            # During a pause nobody is asked, even one who would answer.
            while one._not_before > clock.now:
                clock.now += 0.05
                if clock.now < one._not_before:
                    assert not await asked(one)
            pauses.append(clock.now - before)
        assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0], abs=0.06)
        assert (one.up, one.up_seconds) == (False, 0.0)
        await server.start()
        assert await asked(one)
        assert (one.up, one.age_seconds) == (True, 0.0)
        await one.close()
        assert not await asked(one)
    lines = [record.getMessage() for record in caplog.records]
    assert ["answers" in line for line in lines] == [True, False, True]
    assert "cannot be used" in lines[1]


async def test_one_that_fails_again_soon_is_not_asked_as_often_as_before() -> None:
    clock = Clock()
    async with redis_server() as server:
        one = connection(server.url, clock)
        pauses = []
        for _ in range(4):
            assert await asked(one)
            await server.kill()
            assert not await asked(one)
            pauses.append(one._not_before - clock.now)
            clock.now = one._not_before
            await server.start()
        assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8])
        assert await asked(one)
        clock.now += 6
        await server.kill()
        assert not await asked(one)
        assert one._not_before - clock.now == pytest.approx(0.1)
        await one.close()


async def test_a_frozen_redis_costs_two_timeouts_and_then_nothing() -> None:
    clock = Clock()
    async with redis_server() as server:
        one = connection(server.url, clock, 0.1)
        assert await asked(one)
        server.stop_answering()
        assert not await asked(one)
        assert not one.up
        # The pause is on a clock that stands: these fail without a word to Redis.
        for _ in range(1000):
            with pytest.raises(Unreachable, match="not asked again yet"):
                await one.ask(*WRITE)
        server.answer_again()
        clock.now += 10
        assert await asked(one)
        await one.close()


async def test_silence_is_a_failure_and_hanging_up_on_it_takes_no_longer() -> None:
    clock = Clock()
    async with black_hole() as url:
        one = connection(url, clock, 0.05)
        for _ in range(3):
            assert not await asked(one)
            clock.now += 10
        async with asyncio.timeout(5):
            await one.close()
        assert (one.up, one.age_seconds) == (False, 30.0)


async def test_who_refuses_to_be_written_to_is_resolved_anew_each_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    async with read_only_server() as server:
        one = connection(server.url, clock)
        for tries in range(1, 4):
            assert not await asked(one)
            assert server.connections == tries
            clock.now += 10
        await one.close()
    assert [record.getMessage().count("read only replica") for record in caplog.records] == [1]


async def test_a_primary_that_became_a_replica_is_left_until_it_is_one_no_more() -> None:
    clock = Clock()
    async with redis_server() as other, redis_server() as server:
        one = connection(server.url, clock)
        assert await asked(one)
        await server.run("REPLICAOF", "127.0.0.1", other.port)
        assert not await asked(one)
        clock.now += 10
        await server.run("REPLICAOF", "NO", "ONE")
        assert await asked(one)
        await one.close()


async def test_a_cluster_is_followed_to_the_node_that_has_the_keys() -> None:
    clock = Clock()
    cluster = ("--cluster-enabled", "yes")
    async with redis_server(*cluster) as holder, redis_server(*cluster) as stranger:
        await holder.run("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        await stranger.run("CLUSTER", "MEET", "127.0.0.1", holder.port, holder.bus_port)
        async with asyncio.timeout(20):
            while not await _knows_slots(stranger):  # noqa: ASYNC110 - told by nobody
                await asyncio.sleep(0.05)
        one = connection(stranger.url, clock)
        assert await asked(one)
        assert await holder.run("GET", "{p}:k") == b"x"
        assert await asked(one)
        await one.close()


async def _knows_slots(server: RedisServer) -> bool:
    told = await server.run("CLUSTER", "INFO")
    return b"cluster_state:ok" in (told if isinstance(told, bytes) else str(told).encode())


async def test_passwords_open_the_door_and_are_never_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    clock = Clock()
    async with redis_server("--requirepass", "open:sesame") as server:
        place = f"127.0.0.1:{server.port}"
        right = connection(SecretStr(f"redis://:open%3Asesame@{place}"), clock)
        assert await asked(right)
        wrong = connection(SecretStr(f"redis://:shut-sesame@{place}"), clock)
        assert not await asked(wrong)
        await right.close()
        await wrong.close()
    for url in ("http://:shut-sesame@h", "redis://:shut-sesame@h:port", "nothing"):
        with pytest.raises(ValueError, match="begins with redis://") as caught:
            connection(SecretStr(url), clock)
        assert "sesame" not in repr(caught.value)
    assert caplog.records
    assert "sesame" not in caplog.text


async def test_what_a_url_says_of_limits_does_not_count() -> None:
    async with black_hole() as url:
        loose = SecretStr(
            f"{url.get_secret_value()}?socket_timeout=600&max_connections=9999&retry_on_timeout=1"
        )
        one = connection(loose, Clock(), 0.05)
        assert not await asked(one)
        await one.close()


async def test_messages_are_heard_until_the_connection_breaks() -> None:
    clock = Clock()
    async with redis_server() as server, asyncio.timeout(20):
        one = connection(server.url, clock)
        heard = asyncio.Event()

        async def listen() -> None:
            async for _ in one.listen("news"):
                heard.set()

        listening = asyncio.create_task(listen())
        while not await server.run("PUBLISH", "news", "x"):  # noqa: ASYNC110 - told by nobody
            await asyncio.sleep(0.01)
        await heard.wait()
        await server.kill()
        await listening
        await one.close()


async def test_who_asks_can_be_cancelled_at_any_point() -> None:
    async with redis_server() as server, asyncio.timeout(30):
        one = Connection(server.url, 0.5, 5.0)

        async def ask_for_ever() -> None:
            while True:
                await one.ask(*WRITE)

        for steps in range(100):
            asking = asyncio.create_task(ask_for_ever())
            for _ in range(steps % 50):
                await asyncio.sleep(0)
            asking.cancel()
            done, _ = await asyncio.wait({asking}, timeout=2)
            assert done
            assert asking.cancelled()
        # And nothing of theirs is taken for an answer to others.
        assert await one.ask(*WRITE) == b"x"
        await one.close()
