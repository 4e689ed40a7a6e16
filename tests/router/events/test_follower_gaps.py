"""What a follower missed is replayed, or what it holds is dropped."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
import zmq

from tests.router.events.following import digest_of, following, heard, holds
from tests.router.events.publisher import Place, Publisher, prompt, removed, stored, until


@pytest.mark.parametrize("topic_in_replay", [True, False])
async def test_a_gap_is_filled_by_a_replay(topic_in_replay: bool) -> None:
    publisher = Publisher(topic="kv@pod", topic_in_replay=topic_in_replay)
    try:
        async with following(publisher.place) as follower:
            await until(lambda: follower.trusted)
            epoch = follower.epoch
            prompts = [prompt(seed, 4) for seed in range(5)]
            for seed, (tokens, hashes) in enumerate(prompts):
                publisher.publish(stored(tokens, hashes), lost=seed in (1, 2))
            await until(lambda: follower.batches == 5)
            assert await holds(follower, *(tokens for tokens, _ in prompts))
            assert (follower.gaps, follower.dropped, follower.epoch) == (1, 0, epoch)
    finally:
        publisher.close()


async def test_a_gap_without_replay_drops_the_index() -> None:
    publisher = Publisher(kept=0)
    try:
        async with following(publisher.place) as follower:
            await until(lambda: follower.trusted)
            epoch = follower.epoch
            first, second, third = (prompt(seed, 4) for seed in range(3))
            await heard(publisher, follower)
            publisher.publish(stored(*first))
            publisher.publish(stored(*second), lost=True)
            publisher.publish(stored(*third))
            await until(lambda: follower.dropped == 1)
            await until(lambda: follower.counts.blocks == 4)
            assert await holds(follower, third[0])
            assert follower.epoch != epoch
    finally:
        publisher.close()


async def test_a_replay_shorter_than_the_gap_drops_the_index() -> None:
    publisher = Publisher(kept=2)
    try:
        async with following(publisher.place) as follower:
            await until(lambda: follower.trusted)
            await heard(publisher, follower)
            prompts = [prompt(seed, 4) for seed in range(6)]
            publisher.publish(stored(*prompts[0]))
            await until(lambda: follower.counts.blocks == 4)
            for seed in (1, 2, 3, 4):
                publisher.publish(stored(*prompts[seed]), lost=True)
            publisher.publish(stored(*prompts[5]))
            await until(lambda: follower.dropped == 1 and follower.counts.blocks == 8)
            # What is still replayed is known, and nothing from before.
            assert await holds(follower, prompts[4][0], prompts[5][0])
    finally:
        publisher.close()


async def test_a_burst_during_a_replay_stays_in_order(publisher: Publisher) -> None:
    tokens, hashes = prompt(1, 3000)

    def block(at: int) -> Any:
        return stored(tokens[at * 16 : (at + 1) * 16], [hashes[at]], hashes[at - 1] if at else None)

    for at in range(2000):
        publisher.publish(block(at))
    async with following(publisher.place) as follower:
        for at in range(2000, 3000):
            publisher.publish(block(at))
            if at % 100 == 0:
                await asyncio.sleep(0)
        await until(lambda: follower.counts.blocks == 3000)
        assert follower.counts.orphans == 0
        assert follower.batches == 3000
        assert follower.dropped == 0
        await until(lambda: follower.trusted)


async def test_what_a_replay_lost_on_its_way_is_asked_for_again(publisher: Publisher) -> None:
    prompts = [prompt(seed, 4) for seed in range(10)]
    for tokens, hashes in prompts:
        publisher.publish(stored(tokens, hashes))
    publisher.lost_in_replay = {4, 5, 8}
    async with following(publisher.place) as follower:
        await until(lambda: follower.trusted)
        assert await holds(follower, *(tokens for tokens, _ in prompts))
        assert (follower.batches, follower.dropped, publisher.replays) == (10, 0, 2)


async def test_last_words_that_were_lost_are_asked_for_when_all_is_quiet(publisher: Publisher) -> None:
    async with following(publisher.place) as follower:
        await until(lambda: follower.trusted)
        publisher.publish(stored(*prompt(1, 4)))
        await until(lambda: follower.batches == 1)
        publisher.publish(removed(prompt(1, 4)[1]), lost=True)
        await until(lambda: follower.batches == 2, seconds=20)
        assert await holds(follower)
        assert follower.dropped == 0


async def test_a_replay_that_nobody_answers_is_done_without() -> None:
    publisher = Publisher(kept=0)
    silent: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router = silent.socket(zmq.SocketType.ROUTER)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    try:
        place = Place(publisher.place.endpoint, f"tcp://127.0.0.1:{port}")
        async with following(place) as follower:
            await until(lambda: follower.connected)
            assert await digest_of(follower) is None
            await until(lambda: follower.trusted, seconds=20)
            publisher.publish(stored(*prompt(1, 4)))
            await until(lambda: follower.counts.blocks == 4)
            assert await holds(follower, prompt(1, 4)[0])
    finally:
        publisher.close()
        silent.destroy(linger=0)


async def test_replay_is_asked_for_from_the_last_message_on(publisher: Publisher) -> None:
    """So that a publisher of another life is told by what it holds under that number."""
    asked: list[int] = []
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router = context.socket(zmq.SocketType.ROUTER)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    payloads = {n: msgspec.msgpack.encode([float(n), [stored(*prompt(n, 1))], 0]) for n in range(3)}

    async def serve() -> None:
        while True:
            if not router.poll(0):
                await asyncio.sleep(0.005)
                continue
            client, _, start = router.recv_multipart()
            asked.append(int.from_bytes(start, "big"))
            for number, payload in payloads.items():
                if number >= asked[-1]:
                    router.send_multipart([client, b"", b"", number.to_bytes(8, "big"), payload])
            router.send_multipart([client, b"", b"", b"\xff" * 8, b""])

    serving = asyncio.create_task(serve())
    try:
        async with following(Place(publisher.place.endpoint, f"tcp://127.0.0.1:{port}")) as follower:
            await until(lambda: follower.batches == 3)
            publisher.next = 5
            publisher.publish(stored(*prompt(5, 1)))
            await until(lambda: len(asked) >= 2)
            assert asked[:2] == [0, 2]
            await until(lambda: follower.dropped == 1)
    finally:
        serving.cancel()
        context.destroy(linger=0)
