"""Whatever is lost, repeated or restarted on the way, a follower ends up with what the engine holds."""

from __future__ import annotations

import asyncio
import random
from time import monotonic

import pytest

from router.chain.digest import Digest
from router.chain.keys import Keys
from router.chain.namer import ChainNamer
from router.events.follower import Follower
from tests.router.events.publisher import CLEARED, Publisher, prompt, removed, stored
from tests.tiny_tokenizer import tiny_tokenizer

_NAMER = ChainNamer("xxh3", "seed", 16, tiny_tokenizer())


class _Engine:
    """Stores and removes prompts at random; its messages are lost and repeated at random."""

    def __init__(self, seed: int, kept: int) -> None:
        self.draw = random.Random(seed)
        self.kept = kept
        self.publisher = Publisher(kept)
        self.place = self.publisher.place
        # Prompts by their seed: how many of their four blocks are held.
        self.held: dict[int, int] = {}
        self.prompts = 0

    def step(self) -> None:
        roll = self.draw.random()
        lost = self.draw.random() < 0.2
        if roll < 0.55 or not self.held:
            self.store(lost)
        elif roll < 0.8:
            one = self.draw.choice(sorted(self.held))
            left = self.draw.randrange(self.held[one])
            self.publisher.publish(removed(prompt(one, 4)[1][left : self.held[one]]), lost=lost)
            self.held[one] = left
            if not left:
                del self.held[one]
        elif roll < 0.9 and self.publisher.buffer:
            self.publisher.publish_again(self.draw.choice(self.publisher.buffer[-5:])[0])
        elif roll < 0.94:
            self.held.clear()
            self.publisher.publish(CLEARED, lost=lost)
        elif roll < 0.97:
            self.restart()

    def store(self, lost: bool) -> None:
        self.prompts += 1
        self.held[self.prompts] = 4
        self.publisher.publish(stored(*prompt(self.prompts, 4)), lost=lost)

    def restart(self) -> None:
        self.held.clear()
        self.publisher.close()
        self.publisher = Publisher(self.kept, at=self.place)

    def names(self) -> list[bytes]:
        chains = [
            _NAMER.chain_of_tokens(prompt(one, 4)[0], Keys("m")).names[:blocks]
            for one, blocks in self.held.items()
        ]
        return [name for names in chains for name in names]


async def _settled(engine: _Engine, follower: Follower) -> Digest:
    """Store a last prompt, and return the digest that holds it."""
    engine.store(lost=False)
    last = engine.names()[-4:]
    async with asyncio.timeout(20):
        while True:
            digest = await follower.digest(_NAMER.identity.fingerprint, "epoch")
            if digest is not None and all(name in digest for name in last):
                return digest
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kept", [10_000, 3])
async def test_chaos(seed: int, kept: int) -> None:
    engine = _Engine(seed, kept)
    follower = Follower([engine.place], {"m": _NAMER}.get, "m", 4096, monotonic)
    follower.start()
    try:
        async with asyncio.timeout(60):
            for _ in range(3):
                for _ in range(40):
                    engine.step()
                    await asyncio.sleep(engine.draw.choice([0, 0, 0.002]))
                digest = await _settled(engine, follower)
                held = engine.names()
                found = sum(name in digest for name in held)
                # Without all that was said, less is known, never more.
                assert digest.names <= found
                if kept > 3:
                    assert digest.names == found == len(held)
    finally:
        await follower.stop()
        engine.publisher.close()
