"""At three times what a fleet can serve, it serves as much in time as at its capacity, and hits as often."""

from __future__ import annotations

import asyncio

from tests.integration.overloading import LIMITS, crowd

_SECONDS = 4.0


async def test_goodput_holds_at_three_times_the_capacity() -> None:
    async with crowd(**LIMITS) as clients, asyncio.timeout(60):
        fits = await clients.come(1.0, _SECONDS)
        flood = await clients.come(3.0, _SECONDS)
    assert not fits.failed + flood.failed
    assert flood.sent > 2 * fits.sent
    # Without limits a third or less: nearly all come too late.
    assert flood.good > 0.8 * fits.good
    assert flood.too_late < 0.1 * flood.sent
    shed = len(flood.shed_seconds)
    assert flood.good + shed + flood.too_late == flood.sent
    assert shed > 0.3 * flood.sent
    # Refused are long chats and short ones alike, and what is served still finds its cache.
    assert abs(flood.shed_share(long=True) - flood.shed_share(long=False)) < 0.25
    assert flood.hit_ratio > 0.7 * fits.hit_ratio
