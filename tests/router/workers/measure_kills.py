"""Kills one of four workers fifty times, and prints what became of counts, gauges, files and memory.

python -m tests.router.workers.measure_kills [KILLS]
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path

from loadgen.bench.relay.clocks import memory_bytes
from tests.router.scripted import ScriptedReplica
from tests.router.workers.killing import kill_workers
from tests.router.workers.running import open_files, running

_WORKERS = 4
# A worker that served for so long is started again within a second.
_PAUSE_SECONDS = 3.0


async def main(kills: int) -> None:
    """Measure and print."""
    replica = ScriptedReplica("r0")
    await replica.start()
    with tempfile.TemporaryDirectory() as folder:
        scratch = os.path.join(folder, "scratch")
        os.mkdir(scratch)
        environment = {"TMPDIR": scratch}
        async with running(replica, Path(folder), _WORKERS, environment=environment) as up:
            files, (memory, _) = open_files(up.supervisor), memory_bytes([up.supervisor])
            watched = await kill_workers(up, _WORKERS, kills, _PAUSE_SECONDS)
            counts, gauges = await up.scrape()
            later, _ = memory_bytes([up.supervisor])
            served = counts["kvring_requests_total", (("outcome", "ok"), ("replica", "r0"))]
            sys.stdout.write(
                f"{kills} kills, {counts['kvring_worker_restarts_total', ()]:.0f} restarts, "
                f"{watched.scrapes} scrapes of {len(counts)} counts: {len(watched.went_back)} went back\n"
                f"{''.join(f'{one}{chr(10)}' for one in watched.went_back)}"
                f"in flight {gauges['kvring_in_flight_requests', ()]:.0f}, "
                f"leases {gauges['kvring_replica_in_flight_requests', (('replica', 'r0'),)]:.0f}, "
                f"replica busy with {replica.running}\n"
                f"answers: {watched.answers} received, {served:.0f} counted, {len(replica.bodies)} given\n"
                f"supervisor: {files} -> {open_files(up.supervisor)} open files, "
                f"{memory / 1e6:.1f} -> {later / 1e6:.1f} MB; files left: {len(os.listdir(scratch))}\n"
            )
    await replica.stop()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 50))
