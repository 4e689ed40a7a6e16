"""How soon a replica sees that the client has left, by the phase it left in.

    python -m tests.router.gateway.measure_cancel [TIMES]

The router is a process of its own; client and replicas share another. What is measured goes from the
client's close to the replica's end of file, all loops and sockets in between included.
"""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory

from tests.router.gateway.leaving import PHASES, SEEN, Leaver, Watched, in_groups
from tests.router.http.alone import alone
from tests.router.scripted import ScriptedReplica

# A replica that breaks off again and again would be taken out.
SETTINGS = ("models={nobodys={}}", "policy.name='round_robin'", "fleet.failures_to_suspect=100")


async def main(times: int) -> None:
    """Measure and print."""
    replicas = [ScriptedReplica(f"r{number}") for number in range(3)]
    watched = Watched()
    for replica in replicas:
        await replica.start()
        watched.serve(replica)
    members = [(replica.name, replica.url) for replica in replicas]
    with TemporaryDirectory() as logs:
        async with alone(members, Path(logs), *SETTINGS) as router:
            await asyncio.sleep(1.0)
            leaver = Leaver(router.port, watched, 1)
            for phase in PHASES:
                work = [partial(leaver.leave, phase, f"{phase}-{number}") for number in range(times)]
                seconds = [one for one in await in_groups(work, 4) if one is not None]
                if phase in SEEN:
                    cuts = quantiles(seconds, n=100)
                    sys.stdout.write(
                        f"{phase:12} p50 {cuts[49] * 1e3:6.1f} ms  p99 {cuts[98] * 1e3:6.1f} ms"
                        f"  longest {max(seconds) * 1e3:6.1f} ms  of {len(seconds)}\n"
                    )
            await asyncio.sleep(1.0)
            sys.stdout.write(f"in flight after all: {await router.metric('kvring_in_flight_requests'):g}\n")
    for replica in replicas:
        await replica.stop()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 200))
