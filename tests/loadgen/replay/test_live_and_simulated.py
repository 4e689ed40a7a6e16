"""A trace against a live fleet of echo replicas, and the same one simulated: they must agree."""

from __future__ import annotations

import asyncio

import pytest

from loadgen.replay.options import ReplayOptions
from loadgen.replay.replay import Live, compare, replay_live
from loadgen.traces.generate.kinds import generate
from loadgen.traces.trace import Trace
from tests.integration.fleets import LiveFleet, live_fleet

BLOCK_TOKENS = 64
COST = {"base_seconds": 0.002, "per_token_seconds": 2e-5, "per_token_context_seconds": 0.0}
CACHE_TOKENS = 8192


def chats(turn_seconds: float) -> Trace:
    return generate(
        "chat",
        3,
        conversations=50,
        turns=6,
        system_tokens=256,
        new_tokens=256,
        output_tokens=4,
        turn_seconds=turn_seconds,
        block_tokens=BLOCK_TOKENS,
    )


async def play(fleet: LiveFleet, trace: Trace, **options: object) -> tuple[Live, ReplayOptions]:
    told = ReplayOptions.model_validate(
        {"url": fleet.routers[0].address, "cache_tokens": CACHE_TOKENS, "max_output_tokens": 4, **options}
    )
    return await replay_live(trace, told), told


@pytest.mark.parametrize(("policy", "turn_seconds"), [("affinity", 1.2), ("round_robin", 0.6)])
async def test_eight_live_replicas_hit_as_the_simulated_ones(policy: str, turn_seconds: float) -> None:
    replica = {
        "echo": {"block_count": CACHE_TOKENS // 16, "prefill": COST},
        "scheduler": {"max_batch_tokens": 16_384},
    }
    trace = chats(turn_seconds)
    async with live_fleet(
        8, replica=replica, policy={"name": policy}, fleet={"digest_poll_seconds": 0.5}
    ) as fleet:
        live, options = await play(fleet, trace, policy=policy)
    figures = await asyncio.to_thread(
        compare, live, options, {"cost": COST, "digest_seconds": 0.5, "load_staleness_seconds": 0.05}
    )
    played, simulated = figures
    assert played.rejected == simulated.rejected == 0
    assert (played.replicas, simulated.replicas) == (8, 8)
    assert played.hit_ratio is not None
    assert simulated.hit_ratio is not None
    assert abs(played.hit_ratio - simulated.hit_ratio) <= 0.03
    # The caches are too small for all chats: a comparison of nothing but hits would prove nothing.
    assert simulated.hit_ratio < trace.hit_bound() - 0.05
