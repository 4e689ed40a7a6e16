"""What shared load brings where replicas report nothing: the same requests through routers with and without.

    PYTHONPATH=. python tests/integration/measure_shared_load.py

Four plain replicas serve one request at a time; requests last 10 to 300 ms, most of them short, and arrive
at two thirds of what the fleet can serve, through each router in turn. All is ten times as fast as usual, and
so are the routers: counts are shared every 25 ms. Told is what requests waited, and the longest queue.
"""

from __future__ import annotations

import asyncio
from random import Random
from statistics import fmean, quantiles
from time import monotonic

from pydantic import SecretStr

from tests.integration.plain_fleet import plain_fleet
from tests.redis_server import redis_server

REPLICAS = 4
REQUESTS = 400
LOAD = 0.67
PUBLISH_SECONDS = 0.025


async def waits(routers: int, policy: str, redis: SecretStr | None) -> tuple[list[float], int]:
    """Return what each request waited, in seconds, and the most requests that a replica had at once."""
    draw = Random(7)
    lengths = [min(0.3, 0.01 + draw.expovariate(1 / 0.05)) for _ in range(REQUESTS)]
    gap = fmean(lengths) / (LOAD * REPLICAS)
    waited: list[float] = []
    chosen = {"name": policy}
    async with plain_fleet(REPLICAS, routers, redis, PUBLISH_SECONDS, policy=chosen) as fleet:

        async def one(number: int) -> None:
            began = monotonic()
            status = await fleet.send(number % routers, f"{number} tells of the sea. " * 20, lengths[number])
            assert status == 200
            waited.append(monotonic() - began - lengths[number])

        tasks = []
        for number in range(REQUESTS):
            tasks.append(asyncio.create_task(one(number)))
            await asyncio.sleep(draw.expovariate(1 / gap))
        await asyncio.gather(*tasks)
        return waited, max(replica.most_in_flight for replica in fleet.replicas)


async def main() -> None:
    """Measure all, a line each."""
    async with redis_server() as server:
        for policy in ("least_requests", "affinity"):
            for routers in (1, 2, 4):
                for redis in (None, server.url):
                    if routers == 1 and redis is not None:
                        continue
                    waited, most = await waits(routers, policy, redis)
                    shown = (
                        f"mean {fmean(waited) * 1000:.0f} ms, p95 {quantiles(waited, n=20)[-1] * 1000:.0f} ms"
                    )
                    how = "shared" if redis else "alone"
                    print(f"{policy}, {routers} routers, {how}: {shown}, longest queue {most}")  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main())
