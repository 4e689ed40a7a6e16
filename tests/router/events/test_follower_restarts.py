"""A follower takes an engine's next life for what it is: nothing of the one before is kept."""

from __future__ import annotations

import asyncio

import pytest

from tests.router.events.following import digest_of, following, heard, holds
from tests.router.events.publisher import Publisher, prompt, stored, until


async def test_a_restarted_engine_begins_anew(publisher: Publisher) -> None:
    place = publisher.place
    async with following(place) as follower:
        for seed in range(5):
            publisher.publish(stored(*prompt(seed, 4)))
        await until(lambda: follower.batches == 5)
        epoch = follower.epoch
        publisher.close()
        await until(lambda: not follower.connected)
        assert await digest_of(follower) is None
        again = Publisher(at=place)
        try:
            await until(lambda: follower.trusted)
            # It has said nothing yet: what the old one held is gone all the same.
            assert await holds(follower)
            assert follower.epoch != epoch
            tokens, hashes = prompt(9, 4)
            again.publish(stored(tokens, hashes))
            await until(lambda: follower.counts.blocks == 4)
            assert await holds(follower, tokens)
        finally:
            again.close()


@pytest.mark.parametrize("further", [-3, 0, 3])
async def test_a_restart_without_replay_is_noticed_by_the_next_message(further: int) -> None:
    publisher = Publisher(kept=0)
    place = publisher.place
    async with following(place) as follower:
        await until(lambda: follower.trusted)
        await heard(publisher, follower)
        publisher.publish(stored(*prompt(0, 4)))
        await until(lambda: follower.counts.blocks == 4)
        last = publisher.next - 1
        publisher.close()
        await until(lambda: not follower.connected)
        again = Publisher(kept=0, at=place)
        try:
            await until(lambda: follower.connected)
            # What is held may be another life's: nothing is told until the publisher spoke.
            assert await digest_of(follower) is None
            tokens, hashes = prompt(9, 4)
            async with asyncio.timeout(10):
                while follower.dropped == 0:
                    again.next = max(0, last + further)
                    again.publish(stored(tokens, hashes))
                    await asyncio.sleep(0.01)
            await until(lambda: follower.trusted)
            assert await holds(follower, tokens)
        finally:
            again.close()


async def test_a_number_that_was_passed_with_other_content_is_another_life(publisher: Publisher) -> None:
    async with following(publisher.place) as follower:
        await until(lambda: follower.trusted)
        for seed in range(3):
            publisher.publish(stored(*prompt(seed, 4)))
        await until(lambda: follower.batches == 3)
        publisher.buffer.clear()
        publisher.next = 1
        tokens, hashes = prompt(9, 4)
        publisher.publish(stored(tokens, hashes))
        await until(lambda: follower.dropped == 1 and follower.counts.blocks == 4)
        assert await holds(follower, tokens)
