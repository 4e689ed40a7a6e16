"""What very many connections cost a router: memory and CPU time, idle and while all streams move.

    python -m tests.router.http.measure_scale [IDLE] [STREAMS] [BODY BYTES]

The router is a process of its own; clients and replica share another.
"""

from __future__ import annotations

import asyncio
import resource
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

import uvloop

from loadgen.bench.relay.clocks import cpu_nanoseconds
from tests.router.http.alone import Alone, alone
from tests.router.http.many import ROOM, Crowd, Streaming, replica, streamed
from tests.router.scripted import ScriptedReplica, until

_QUIET_SECONDS = 5.0
_EVENTS = 5


async def _busy(router: Alone, seconds: float) -> float:
    before = cpu_nanoseconds(router.pid)
    await asyncio.sleep(seconds)
    return (cpu_nanoseconds(router.pid) - before) / 1e9 / seconds


async def main(idle: int, streaming: int, body_bytes: int) -> None:
    """Measure and print."""
    server, url, streams = await replica(ScriptedReplica("r0").state().to_json())
    with TemporaryDirectory() as logs:
        async with alone([("r0", url)], Path(logs), *ROOM) as router:
            await _measure(router, streams, idle, streaming, body_bytes)
    server.close()


async def _measure(
    router: Alone, streams: set[Streaming], idle: int, streaming: int, body_bytes: int
) -> None:
    first = Crowd(router.port)
    await first.join(1, streamed())
    await until(lambda: len(streams) == 1)
    first.leave()
    await until(lambda: not streams)
    alone_bytes = router.resident_bytes()
    _say(f"router alone: {alone_bytes / 1e6:.1f} MB, {await _busy(router, _QUIET_SECONDS):.1%} of a core")
    crowd = Crowd(router.port)
    began = monotonic()
    await crowd.join(idle)
    await until(lambda: router.open_files() >= idle, 60)
    idle_bytes = router.resident_bytes()
    _say(f"{idle} idle clients connected in {monotonic() - began:.1f} s: {idle_bytes / 1e6:.1f} MB,", end="")
    _say(f" {(idle_bytes - alone_bytes) / max(1, idle):.0f} bytes each,", end="")
    _say(f" {await _busy(router, _QUIET_SECONDS):.1%} of a core")
    began, before = monotonic(), cpu_nanoseconds(router.pid)
    await crowd.join(streaming, streamed(body_bytes))
    await until(lambda: len(streams) + len(crowd.refused()) == streaming, 60)
    for answer in crowd.refused()[:1]:
        _say(f"refused: {answer[:200]!r}")
    await until(lambda: crowd.events == streaming, 60)
    all_bytes = router.resident_bytes()
    _say(f"{streaming} streams of {body_bytes} bytes begun in {monotonic() - began:.1f} s:", end="")
    microseconds = (cpu_nanoseconds(router.pid) - before) / 1e3 / max(1, streaming)
    _say(f" {microseconds:.0f} us of CPU time each,", end="")
    _say(f" {all_bytes / 1e6:.1f} MB, {(all_bytes - idle_bytes) / max(1, streaming):.0f} bytes each")
    before = cpu_nanoseconds(router.pid)
    for turn in range(_EVENTS):
        for stream in list(streams):
            stream.tell()
        await until(lambda: crowd.events == (turn + 2) * streaming, 60)  # noqa: B023 - awaited in its turn
    microseconds = (cpu_nanoseconds(router.pid) - before) / 1e3 / max(1, _EVENTS * streaming)
    _say(f"an event of each: {microseconds:.1f} us of CPU time an event; closed by it: {crowd.closed()}")
    _say(f"at the peak: {router.resident_bytes() / 1e6:.1f} MB, {router.open_files()} files")
    crowd.leave()
    await until(lambda: not streams, 60)
    await asyncio.sleep(2.0)
    _say(f"after all left: {router.resident_bytes() / 1e6:.1f} MB, {router.open_files()} files", end="")
    _say(f", {await router.metric('kvring_in_flight_requests'):g} in flight")


def _say(text: str, end: str = "\n") -> None:
    sys.stdout.write(text + end)
    sys.stdout.flush()


if __name__ == "__main__":
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asked = [int(argument) for argument in sys.argv[1:]]
    uvloop.run(main(*[*asked, *(10_000, 2_000, 200)[len(asked) :]]))
