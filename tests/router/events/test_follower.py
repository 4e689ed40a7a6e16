"""A follower of a scripted engine over real sockets knows what it holds, or says that it does not know."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

import msgspec
import pytest
import zmq

from router.chain.digest import Digest
from router.chain.keys import Keys
from router.chain.namer import ChainNamer
from router.events.follower import Follower
from router.events.hub import Hub
from tests.router.events.publisher import CLEARED, Place, Publisher, prompt, removed, stored, until
from tests.tiny_tokenizer import tiny_tokenizer

_NAMER = ChainNamer("sha256", "seed", 16, tiny_tokenizer())
_IDENTITY = _NAMER.identity.fingerprint


@asynccontextmanager
async def _following(*places: Place, limit: int = 100_000) -> AsyncIterator[Follower]:
    follower = Follower(places, {"m": _NAMER}.get, "m", limit, monotonic)
    follower.start()
    try:
        async with asyncio.timeout(30):
            yield follower
    finally:
        await follower.stop()


async def _digest(follower: Follower) -> Digest | None:
    return await follower.digest(_IDENTITY, "epoch")


async def _holds(follower: Follower, *prompts: list[int]) -> bool:
    digest = await _digest(follower)
    assert digest is not None
    chains = [_NAMER.chain_of_tokens(tokens, Keys("m")).names for tokens in prompts]
    return digest.names == sum(map(len, chains)) and all(name in digest for names in chains for name in names)


@pytest.fixture
def publisher() -> Any:
    one = Publisher()
    yield one
    one.close()


async def test_late_join_replays_what_was_published_before(publisher: Publisher) -> None:
    prompts = [prompt(seed, 4) for seed in range(10)]
    for tokens, hashes in prompts:
        publisher.publish(stored(tokens, hashes))
    async with _following(publisher.place) as follower:
        assert await _digest(follower) is None
        await until(lambda: follower.trusted)
        assert follower.connected
        assert await _holds(follower, *(tokens for tokens, _ in prompts))
        assert (follower.batches, follower.gaps, follower.dropped) == (10, 0, 0)
        published_at = monotonic()
        publisher.publish(removed(prompts[0][1]))
        await until(lambda: follower.batches == 11)
        assert published_at <= follower.heard_at <= monotonic()
        assert await _holds(follower, *(tokens for tokens, _ in prompts[1:]))
        digest = await _digest(follower)
        assert digest is not None
        assert (digest.identity, digest.epoch) == (_IDENTITY, "epoch")
        assert await _digest(follower) is digest
        assert await follower.digest("another chain", "epoch") is None


@pytest.mark.parametrize("topic_in_replay", [True, False])
async def test_a_gap_is_filled_by_a_replay(topic_in_replay: bool) -> None:
    publisher = Publisher(topic="kv@pod", topic_in_replay=topic_in_replay)
    try:
        async with _following(publisher.place) as follower:
            await until(lambda: follower.trusted)
            epoch = follower.epoch
            prompts = [prompt(seed, 4) for seed in range(5)]
            for seed, (tokens, hashes) in enumerate(prompts):
                publisher.publish(stored(tokens, hashes), lost=seed in (1, 2))
            await until(lambda: follower.batches == 5)
            assert await _holds(follower, *(tokens for tokens, _ in prompts))
            assert (follower.gaps, follower.dropped, follower.epoch) == (1, 0, epoch)
    finally:
        publisher.close()


async def test_a_gap_without_replay_drops_the_index() -> None:
    publisher = Publisher(kept=0)
    try:
        async with _following(publisher.place) as follower:
            await until(lambda: follower.trusted)
            epoch = follower.epoch
            first, second, third = (prompt(seed, 4) for seed in range(3))
            await _heard(publisher, follower)
            publisher.publish(stored(*first))
            publisher.publish(stored(*second), lost=True)
            publisher.publish(stored(*third))
            await until(lambda: follower.dropped == 1)
            await until(lambda: follower.counts.blocks == 4)
            assert await _holds(follower, third[0])
            assert follower.epoch != epoch
    finally:
        publisher.close()


async def _heard(publisher: Publisher, follower: Follower) -> None:
    """Publish nothing until it is heard: a subscription takes a moment to arrive."""
    heard = follower.batches
    async with asyncio.timeout(10):
        while follower.batches == heard:
            publisher.publish()
            await asyncio.sleep(0.01)


async def test_a_replay_shorter_than_the_gap_drops_the_index() -> None:
    publisher = Publisher(kept=2)
    try:
        async with _following(publisher.place) as follower:
            await until(lambda: follower.trusted)
            await _heard(publisher, follower)
            prompts = [prompt(seed, 4) for seed in range(6)]
            publisher.publish(stored(*prompts[0]))
            await until(lambda: follower.counts.blocks == 4)
            for seed in (1, 2, 3, 4):
                publisher.publish(stored(*prompts[seed]), lost=True)
            publisher.publish(stored(*prompts[5]))
            await until(lambda: follower.dropped == 1 and follower.counts.blocks == 8)
            # What is still replayed is known, and nothing from before.
            assert await _holds(follower, prompts[4][0], prompts[5][0])
    finally:
        publisher.close()


async def test_a_restarted_engine_begins_anew(publisher: Publisher) -> None:
    place = publisher.place
    async with _following(place) as follower:
        for seed in range(5):
            publisher.publish(stored(*prompt(seed, 4)))
        await until(lambda: follower.batches == 5)
        epoch = follower.epoch
        publisher.close()
        await until(lambda: not follower.connected)
        assert await _digest(follower) is None
        again = Publisher(at=place)
        try:
            await until(lambda: follower.trusted)
            # It has said nothing yet: what the old one held is gone all the same.
            assert await _holds(follower)
            assert follower.epoch != epoch
            tokens, hashes = prompt(9, 4)
            again.publish(stored(tokens, hashes))
            await until(lambda: follower.counts.blocks == 4)
            assert await _holds(follower, tokens)
        finally:
            again.close()


@pytest.mark.parametrize("further", [-3, 0, 3])
async def test_a_restart_without_replay_is_noticed_by_the_next_message(further: int) -> None:
    publisher = Publisher(kept=0)
    place = publisher.place
    async with _following(place) as follower:
        await until(lambda: follower.trusted)
        await _heard(publisher, follower)
        publisher.publish(stored(*prompt(0, 4)))
        await until(lambda: follower.counts.blocks == 4)
        last = publisher.next - 1
        publisher.close()
        await until(lambda: not follower.connected)
        again = Publisher(kept=0, at=place)
        try:
            await until(lambda: follower.connected)
            # What is held may be another life's: nothing is told until the publisher spoke.
            assert await _digest(follower) is None
            tokens, hashes = prompt(9, 4)
            async with asyncio.timeout(10):
                while follower.dropped == 0:
                    again.next = max(0, last + further)
                    again.publish(stored(tokens, hashes))
                    await asyncio.sleep(0.01)
            await until(lambda: follower.trusted)
            assert await _holds(follower, tokens)
        finally:
            again.close()


async def test_messages_that_come_twice_are_taken_once(publisher: Publisher) -> None:
    async with _following(publisher.place) as follower:
        await until(lambda: follower.trusted)
        first, second = prompt(1, 4), prompt(2, 4)
        publisher.publish(stored(*first))
        publisher.publish(stored(*second))
        publisher.publish(removed(first[1]))
        publisher.publish_again(0)
        publisher.publish_again(2)
        publisher.publish(stored(*prompt(3, 1)))
        await until(lambda: follower.batches == 4)
        assert await _holds(follower, second[0], prompt(3, 1)[0])
        assert follower.dropped == 0


async def test_a_number_that_was_passed_with_other_content_is_another_life(publisher: Publisher) -> None:
    async with _following(publisher.place) as follower:
        await until(lambda: follower.trusted)
        for seed in range(3):
            publisher.publish(stored(*prompt(seed, 4)))
        await until(lambda: follower.batches == 3)
        publisher.buffer.clear()
        publisher.next = 1
        tokens, hashes = prompt(9, 4)
        publisher.publish(stored(tokens, hashes))
        await until(lambda: follower.dropped == 1 and follower.counts.blocks == 4)
        assert await _holds(follower, tokens)


async def test_a_burst_during_a_replay_stays_in_order(publisher: Publisher) -> None:
    tokens, hashes = prompt(1, 3000)

    def block(at: int) -> Any:
        return stored(tokens[at * 16 : (at + 1) * 16], [hashes[at]], hashes[at - 1] if at else None)

    for at in range(2000):
        publisher.publish(block(at))
    async with _following(publisher.place) as follower:
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
    async with _following(publisher.place) as follower:
        await until(lambda: follower.trusted)
        assert await _holds(follower, *(tokens for tokens, _ in prompts))
        assert (follower.batches, follower.dropped, publisher.replays) == (10, 0, 2)


async def test_last_words_that_were_lost_are_asked_for_when_all_is_quiet(publisher: Publisher) -> None:
    async with _following(publisher.place) as follower:
        await until(lambda: follower.trusted)
        publisher.publish(stored(*prompt(1, 4)))
        await until(lambda: follower.batches == 1)
        publisher.publish(removed(prompt(1, 4)[1]), lost=True)
        await until(lambda: follower.batches == 2, seconds=20)
        assert await _holds(follower)
        assert follower.dropped == 0


async def test_a_replay_that_nobody_answers_is_done_without() -> None:
    publisher = Publisher(kept=0)
    silent: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router = silent.socket(zmq.SocketType.ROUTER)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    try:
        place = Place(publisher.place.endpoint, f"tcp://127.0.0.1:{port}")
        async with _following(place) as follower:
            await until(lambda: follower.connected)
            assert await _digest(follower) is None
            await until(lambda: follower.trusted, seconds=20)
            publisher.publish(stored(*prompt(1, 4)))
            await until(lambda: follower.counts.blocks == 4)
            assert await _holds(follower, prompt(1, 4)[0])
    finally:
        publisher.close()
        silent.destroy(linger=0)


async def test_a_large_batch_leaves_turns_to_others(publisher: Publisher) -> None:
    async with _following(publisher.place) as follower:
        await until(lambda: follower.trusted)
        tokens, hashes = prompt(1, 10_000)
        publisher.publish(stored(tokens, hashes))
        turns = 0
        while follower.counts.blocks < 10_000:
            await asyncio.sleep(0)
            if 0 < follower.counts.blocks < 10_000:
                turns += 1
        assert turns > 10


async def test_clearing_begins_another_epoch(publisher: Publisher) -> None:
    async with _following(publisher.place) as follower:
        publisher.publish(stored(*prompt(1, 4)))
        await until(lambda: follower.batches == 1 and follower.trusted)
        epoch, version = follower.epoch, follower.names_version
        publisher.publish(CLEARED, stored(*prompt(2, 4)))
        await until(lambda: follower.batches == 2)
        assert follower.epoch != epoch
        assert follower.names_version > version
        assert await _holds(follower, prompt(2, 4)[0])
        # Nothing was lost: it was told.
        assert follower.dropped == 0


async def test_a_message_that_cannot_be_read_drops_the_index(publisher: Publisher) -> None:
    async with _following(publisher.place) as follower:
        publisher.publish(stored(*prompt(1, 4)))
        await until(lambda: follower.batches == 1)
        publisher.publish_raw(b"\xc1")
        publisher.publish(stored(*prompt(2, 4)))
        await until(lambda: follower.batches == 3)
        await until(lambda: follower.trusted)
        assert follower.dropped == 1
        assert await _holds(follower, prompt(2, 4)[0])


async def test_only_topics_that_begin_so_are_heard() -> None:
    publisher = Publisher(kept=0, topic="other@pod")
    try:
        place = Place(publisher.place.endpoint, topic="kv@")
        async with _following(place) as follower:
            await until(lambda: follower.connected)
            for _ in range(20):
                publisher.publish(stored(*prompt(1, 4)))
                await asyncio.sleep(0.005)
            assert follower.batches == 0
    finally:
        publisher.close()


async def test_ranks_are_followed_apart_and_told_together() -> None:
    ranks = [Publisher(), Publisher()]
    try:
        async with _following(*(rank.place for rank in ranks)) as follower:
            await until(lambda: follower.trusted)
            shared, own = prompt(1, 4), prompt(2, 4)
            for rank in ranks:
                rank.publish(stored(*shared))
            ranks[1].publish(stored(*own))
            await until(lambda: follower.batches == 3)
            assert await _holds(follower, shared[0], own[0])
            ranks[0].publish(removed(shared[1]))
            await until(lambda: follower.batches == 4)
            # The other rank holds it still.
            assert await _holds(follower, shared[0], own[0])
            ranks[0].close()
            await until(lambda: not follower.connected)
            assert await _digest(follower) is None
    finally:
        for rank in ranks:
            rank.close()


async def test_engines_that_connect_are_awaited() -> None:
    probe = Publisher(kept=0)
    endpoint = probe.place.endpoint
    probe.close()
    async with _following(Place(f"@{endpoint}")) as follower:
        publisher = Publisher(kept=0, connect_to=endpoint)
        try:
            await until(lambda: follower.connected)
            await _heard(publisher, follower)
            publisher.publish(stored(*prompt(1, 4)))
            await until(lambda: follower.counts.blocks == 4)
            assert await _holds(follower, prompt(1, 4)[0])
        finally:
            publisher.close()
        await until(lambda: not follower.connected)


async def test_an_engine_that_is_not_there_yet_is_waited_for() -> None:
    probe = Publisher()
    place = probe.place
    probe.close()
    async with _following(place) as follower:
        await asyncio.sleep(0.2)
        assert not follower.connected
        publisher = Publisher(at=place)
        try:
            publisher.publish(stored(*prompt(1, 4)))
            await until(lambda: follower.trusted and follower.counts.blocks == 4)
        finally:
            publisher.close()


async def test_strangers_at_the_address_do_no_harm(publisher: Publisher) -> None:
    async with _following(publisher.place) as follower:
        await until(lambda: follower.trusted)
        socket = publisher._socket
        socket.send_multipart([b"", b"short", b"x"])
        socket.send_multipart([b"alone"])
        publisher.publish(stored(*prompt(1, 4)))
        await until(lambda: follower.counts.blocks == 4)
        assert follower.dropped == 0


@pytest.mark.parametrize("endpoint", ["nonsense", "tcp://", "quic://x:1"])
async def test_an_endpoint_that_is_none_is_told_and_survived(endpoint: str, caplog: Any) -> None:
    async with _following(Place(endpoint)) as follower:
        await until(lambda: "cannot be followed" in caplog.text)
        assert await _digest(follower) is None


@pytest.mark.parametrize("namer", [None, ChainNamer("sha256", "seed", 16, None)])
async def test_models_named_by_bytes_cannot_be_followed(namer: ChainNamer | None, caplog: Any) -> None:
    follower = Follower([Place("tcp://127.0.0.1:1")], lambda model: namer, "m", 4096, monotonic)
    follower.start()
    assert "no tokenizer" in caplog.text
    assert not follower.trusted
    assert await _digest(follower) is None
    await follower.stop()


async def test_followers_share_a_hub_and_leave_nothing_behind(publisher: Publisher) -> None:
    hub = Hub()
    followers = [Follower([publisher.place], {"m": _NAMER}.get, "m", 4096, monotonic, hub) for _ in range(8)]
    for follower in followers:
        follower.start()
    publisher.publish(stored(*prompt(1, 4)))
    for follower in followers:
        await until(lambda each=follower: each.counts.blocks == 4)
        await follower.stop()
        assert follower.counts.blocks == 0
    hub.close()
    gc.collect()
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


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
        async with _following(Place(publisher.place.endpoint, f"tcp://127.0.0.1:{port}")) as follower:
            await until(lambda: follower.batches == 3)
            publisher.next = 5
            publisher.publish(stored(*prompt(5, 1)))
            await until(lambda: len(asked) >= 2)
            assert asked[:2] == [0, 2]
            await until(lambda: follower.dropped == 1)
    finally:
        serving.cancel()
        context.destroy(linger=0)
