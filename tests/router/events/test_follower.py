"""A follower of a scripted engine over real sockets knows what it holds, or says that it does not know."""

from __future__ import annotations

import asyncio
import gc
from time import monotonic
from typing import Any

import pytest

from router.chain.namer import ChainNamer
from router.events.follower import Follower
from router.events.hub import Hub
from tests.router.events.following import IDENTITY, NAMER, digest_of, following, holds
from tests.router.events.publisher import CLEARED, Place, Publisher, prompt, removed, stored, until


async def test_late_join_replays_what_was_published_before(publisher: Publisher) -> None:
    prompts = [prompt(seed, 4) for seed in range(10)]
    for tokens, hashes in prompts:
        publisher.publish(stored(tokens, hashes))
    async with following(publisher.place) as follower:
        assert await digest_of(follower) is None
        await until(lambda: follower.trusted)
        assert follower.connected
        assert await holds(follower, *(tokens for tokens, _ in prompts))
        assert (follower.batches, follower.gaps, follower.dropped) == (10, 0, 0)
        published_at = monotonic()
        publisher.publish(removed(prompts[0][1]))
        await until(lambda: follower.batches == 11)
        assert published_at <= follower.heard_at <= monotonic()
        assert await holds(follower, *(tokens for tokens, _ in prompts[1:]))
        digest = await digest_of(follower)
        assert digest is not None
        assert (digest.identity, digest.epoch) == (IDENTITY, "epoch")
        assert await digest_of(follower) is digest
        assert await follower.digest("another chain", "epoch") is None


async def test_messages_that_come_twice_are_taken_once(publisher: Publisher) -> None:
    async with following(publisher.place) as follower:
        await until(lambda: follower.trusted)
        first, second = prompt(1, 4), prompt(2, 4)
        publisher.publish(stored(*first))
        publisher.publish(stored(*second))
        publisher.publish(removed(first[1]))
        publisher.publish_again(0)
        publisher.publish_again(2)
        publisher.publish(stored(*prompt(3, 1)))
        await until(lambda: follower.batches == 4)
        assert await holds(follower, second[0], prompt(3, 1)[0])
        assert follower.dropped == 0


async def test_a_large_batch_leaves_turns_to_others(publisher: Publisher) -> None:
    async with following(publisher.place) as follower:
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
    async with following(publisher.place) as follower:
        publisher.publish(stored(*prompt(1, 4)))
        await until(lambda: follower.batches == 1 and follower.trusted)
        epoch, version = follower.epoch, follower.names_version
        publisher.publish(CLEARED, stored(*prompt(2, 4)))
        await until(lambda: follower.batches == 2)
        assert follower.epoch != epoch
        assert follower.names_version > version
        assert await holds(follower, prompt(2, 4)[0])
        # Nothing was lost: it was told.
        assert follower.dropped == 0


async def test_a_message_that_cannot_be_read_drops_the_index(publisher: Publisher) -> None:
    async with following(publisher.place) as follower:
        publisher.publish(stored(*prompt(1, 4)))
        await until(lambda: follower.batches == 1)
        publisher.publish_raw(b"\xc1")
        publisher.publish(stored(*prompt(2, 4)))
        await until(lambda: follower.batches == 3)
        await until(lambda: follower.trusted)
        assert follower.dropped == 1
        assert await holds(follower, prompt(2, 4)[0])


async def test_only_topics_that_begin_so_are_heard() -> None:
    publisher = Publisher(kept=0, topic="other@pod")
    try:
        place = Place(publisher.place.endpoint, topic="kv@")
        async with following(place) as follower:
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
        async with following(*(rank.place for rank in ranks)) as follower:
            await until(lambda: follower.trusted)
            shared, own = prompt(1, 4), prompt(2, 4)
            for rank in ranks:
                rank.publish(stored(*shared))
            ranks[1].publish(stored(*own))
            await until(lambda: follower.batches == 3)
            assert await holds(follower, shared[0], own[0])
            ranks[0].publish(removed(shared[1]))
            await until(lambda: follower.batches == 4)
            # The other rank holds it still.
            assert await holds(follower, shared[0], own[0])
            ranks[0].close()
            await until(lambda: not follower.connected)
            assert await digest_of(follower) is None
    finally:
        for rank in ranks:
            rank.close()


async def test_strangers_at_the_address_do_no_harm(publisher: Publisher) -> None:
    async with following(publisher.place) as follower:
        await until(lambda: follower.trusted)
        socket = publisher._socket
        socket.send_multipart([b"", b"short", b"x"])
        socket.send_multipart([b"alone"])
        publisher.publish(stored(*prompt(1, 4)))
        await until(lambda: follower.counts.blocks == 4)
        assert follower.dropped == 0


@pytest.mark.parametrize("namer", [None, ChainNamer("sha256", "seed", 16, None)])
async def test_models_named_by_bytes_cannot_be_followed(namer: ChainNamer | None, caplog: Any) -> None:
    follower = Follower([Place("tcp://127.0.0.1:1")], lambda model: namer, "m", 4096, monotonic)
    follower.start()
    assert "no tokenizer" in caplog.text
    assert not follower.trusted
    assert await digest_of(follower) is None
    await follower.stop()


async def test_followers_share_a_hub_and_leave_nothing_behind(publisher: Publisher) -> None:
    hub = Hub()
    followers = [Follower([publisher.place], {"m": NAMER}.get, "m", 4096, monotonic, hub) for _ in range(8)]
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
