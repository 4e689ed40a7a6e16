"""Followers of scripted engines, and what tests ask of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic

from router.chain.digest import Digest
from router.chain.keys import Keys
from router.chain.namer import ChainNamer
from router.events.follower import Follower
from tests.router.events.publisher import Place, Publisher
from tests.tiny_tokenizer import tiny_tokenizer

NAMER = ChainNamer("sha256", "seed", 16, tiny_tokenizer())
IDENTITY = NAMER.identity.fingerprint


@asynccontextmanager
async def following(*places: Place, limit: int = 100_000) -> AsyncIterator[Follower]:
    """Follow one engine, a rank at each place, for half a minute at most."""
    follower = Follower(places, {"m": NAMER}.get, "m", limit, monotonic)
    follower.start()
    try:
        async with asyncio.timeout(30):
            yield follower
    finally:
        await follower.stop()


async def digest_of(follower: Follower) -> Digest | None:
    """Return what the follower tells of what the engine holds."""
    return await follower.digest(IDENTITY, "epoch")


async def holds(follower: Follower, *prompts: list[int]) -> bool:
    """Say whether the engine is told to hold these prompts' blocks, and no others."""
    digest = await digest_of(follower)
    assert digest is not None
    chains = [NAMER.chain_of_tokens(tokens, Keys("m")).names for tokens in prompts]
    return digest.names == sum(map(len, chains)) and all(name in digest for names in chains for name in names)


async def heard(publisher: Publisher, follower: Follower) -> None:
    """Publish nothing until it is heard: a subscription takes a moment to arrive."""
    before = follower.batches
    async with asyncio.timeout(10):
        while follower.batches == before:
            publisher.publish()
            await asyncio.sleep(0.01)
