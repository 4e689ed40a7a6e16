"""The load client, a process of its own: a closed loop over some connections that checks every answer.

It reads an order a line from stdin and writes a reading a line to stdout, both JSON.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import count, cycle
from statistics import quantiles
from typing import cast

import orjson
import uvloop

from loadgen.bench.relay.clocks import cpu_nanoseconds
from loadgen.bench.relay.exchange import (
    EVENT_SECONDS,
    EVENTS,
    HELD_SECONDS,
    Kind,
    number,
    read_held,
    requests,
    stream_events,
)

_MOST_FAILURES = 20
_PAUSE_SECONDS = 0.05
_LAST_ANSWERS_SECONDS = 10.0
# Each run draws its groups anew from so many, over and over.
_DRAWS = 4096


@dataclass(frozen=True, slots=True)
class Order:
    """What to ask of a port, and the processes whose CPU time is read while it is asked."""

    port: int
    kind: Kind
    body_bytes: int
    concurrency: int
    warm_seconds: float
    seconds: float
    key: str
    seed: int
    pids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Reading:
    """What happened within the seconds measured; failures of the whole order, and the first one's story.

    CPU times are those of the order's `pids`, in their order, and the caller's own. Latencies are in
    milliseconds, without what replicas held answers for; zero for streams.
    """

    requests: int
    events: int
    failures: int
    failure: str
    seconds: float
    cpu_nanoseconds: tuple[int, ...]
    own_cpu_nanoseconds: int
    p50_milliseconds: float
    p99_milliseconds: float


class Chunked:
    """Takes the chunks of a body apart as they come."""

    def __init__(self) -> None:
        self.ended = False
        self._rest = b""

    def feed(self, data: bytes) -> bytes:
        """Return the content of all chunks that are whole; ValueError for what is none."""
        if self._rest:
            data = self._rest + data
        parts = []
        at = 0
        while not self.ended and (line := data.find(b"\r\n", at)) >= 0:
            size = int(data[at:line], 16)
            end = line + 2 + size
            if len(data) < end + 2:
                break
            parts.append(data[line + 2 : end])
            at = end + 2
            self.ended = size == 0
        self._rest = data[at:]
        return b"".join(parts)


class _Run:
    """The state of one order: what is asked next, and what was counted."""

    def __init__(self, order: Order) -> None:
        self.order = order
        heads, self.ending = requests(order.kind, order.body_bytes, order.key, order.seed)
        draw = random.Random(order.seed)
        self.heads: Iterator[bytes] = cycle(draw.choices(heads, k=_DRAWS))
        # Never the same number twice, whatever was asked before.
        self.numbers = count(time.time_ns() // 1_000_000 % 10**6 * 10**6)
        self.stopping = False
        self.requests = self.events = self.failures = 0
        self.failure = ""
        self.latencies: list[int] = []
        self.open = 0
        self.idle = asyncio.Event()

    def fail(self, why: str) -> None:
        self.failures += 1
        self.failure = self.failure or why
        if self.failures >= _MOST_FAILURES:
            self.stopping = True

    async def connect(self, after_seconds: float) -> None:
        """Open a connection, which asks at once and until the run stops."""
        await asyncio.sleep(after_seconds)
        loop = asyncio.get_running_loop()
        while not self.stopping:
            try:
                await loop.create_connection(lambda: _Connection(self), "127.0.0.1", self.order.port)
            except OSError as error:
                self.fail(f"cannot connect: {error}")
                await asyncio.sleep(_PAUSE_SECONDS)
            else:
                return


class _Connection(asyncio.Protocol):
    """Asks, checks the answer, and asks again."""

    def __init__(self, run: _Run) -> None:
        self._run = run
        self._stream = run.order.kind == "sse"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._run.open += 1
        self._run.idle.clear()
        self._asking = False
        if self._run.stopping:
            self._transport.close()
        else:
            self._ask()

    def connection_lost(self, exc: Exception | None) -> None:
        run = self._run
        run.open -= 1
        if self._asking:
            run.fail(f"the connection broke: {exc or 'closed within an answer'}")
        if not run.stopping:
            self._again = asyncio.ensure_future(run.connect(_PAUSE_SECONDS if self._asking else 0))
        elif not run.open:
            run.idle.set()

    def _ask(self) -> None:
        run = self._run
        self._number = number(next(run.numbers))
        self._buffer = b""
        self._head = False
        self._length = -1
        self._chunked: Chunked | None = None
        self._asking = True
        if self._stream:
            self._expected = b"".join(stream_events(self._number, usage=False))
            self._seen = 0
        self._asked = time.perf_counter_ns()
        self._transport.writelines((next(run.heads), self._number, run.ending))

    def data_received(self, data: bytes) -> None:
        try:
            self._take(data)
        except ValueError as error:
            self._asking = False
            self._run.fail(str(error))
            self._transport.abort()

    def _take(self, data: bytes) -> None:
        if not self._asking:
            raise ValueError("more came than an answer")
        if not self._head:
            data = self._buffer + data
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self._buffer = data
                return
            self._read_head(data[: end + 2], data[end + 4 :])
            data = data[end + 4 :]
            self._buffer = b""
        chunked = self._chunked
        if chunked is not None:
            data = chunked.feed(data)
        if self._stream:
            self._take_events(data)
            whole = chunked is not None and chunked.ended
        else:
            self._buffer += data
            whole = chunked.ended if chunked is not None else len(self._buffer) >= self._length
        if whole:
            self._answered()

    def _read_head(self, head: bytes, body: bytes) -> None:
        if head[9:12] != b"200":
            raise ValueError(f"answered {head.splitlines()[0].decode(errors='replace')}: {body[:200]!r}")
        head = head.lower()
        start = head.find(b"\r\ncontent-length:")
        if start >= 0:
            self._length = int(head[start + 17 : head.find(b"\r\n", start + 2)])
        elif b"\r\ntransfer-encoding: chunked\r\n" in head:
            self._chunked = Chunked()
        else:
            raise ValueError("an answer has neither a length nor chunks")
        self._head = True
        self._closes = b"\r\nconnection: close\r\n" in head

    def _take_events(self, data: bytes) -> None:
        if not self._expected.startswith(data, self._seen):
            raise ValueError(f"a stream is not what the replica sent: {data[:200]!r}")
        self._seen += len(data)
        self._run.events += data.count(b"\n\n")

    def _answered(self) -> None:
        run = self._run
        if self._stream:
            if self._seen != len(self._expected):
                raise ValueError(f"a stream ended after {self._seen} of {len(self._expected)} bytes")
        else:
            held = read_held(self._buffer, self._number)
            if held is None:
                raise ValueError(f"an answer is not what the replica sent: {self._buffer[:200]!r}")
            run.latencies.append(time.perf_counter_ns() - self._asked - held * 1000)
        run.requests += 1
        self._asking = False
        if run.stopping or self._closes:
            self._transport.close()
        else:
            self._ask()


async def call(order: Order) -> Reading:
    """Carry out an order; never raises for what a router does: that is counted."""
    run = _Run(order)
    # Over the time that one answer takes, so that they do not march in step.
    takes = {"json": 0.0, "held": HELD_SECONDS, "sse": EVENT_SECONDS * EVENTS}[order.kind]
    spread = min(takes, order.seconds)
    starts = [
        asyncio.ensure_future(run.connect(spread * index / order.concurrency))
        for index in range(order.concurrency)
    ]
    await asyncio.sleep(max(order.warm_seconds, spread))
    run.requests = run.events = 0
    run.latencies.clear()
    started, before = time.perf_counter_ns(), _cpu_times(order.pids)
    await asyncio.sleep(order.seconds)
    nanoseconds = time.perf_counter_ns() - started
    spent = [now - then for now, then in zip(_cpu_times(order.pids), before, strict=True)]
    counted = run.requests, run.events
    latencies = quantiles(run.latencies, n=100) if len(run.latencies) > 1 else [0.0] * 99
    run.stopping = True
    await asyncio.gather(*starts)
    if run.open:
        try:
            await asyncio.wait_for(run.idle.wait(), _LAST_ANSWERS_SECONDS)
        except TimeoutError:
            run.fail(f"{run.open} answers did not come within {_LAST_ANSWERS_SECONDS:.0f} s")
    return Reading(
        *counted,
        run.failures,
        run.failure,
        nanoseconds / 1e9,
        tuple(spent[:-1]),
        spent[-1],
        latencies[49] / 1e6,
        latencies[98] / 1e6,
    )


def _cpu_times(pids: tuple[int, ...]) -> list[int]:
    return [*map(cpu_nanoseconds, pids), time.process_time_ns()]


def main() -> None:
    """Carry out orders until stdin ends."""
    for line in sys.stdin.buffer:
        order = Order(**orjson.loads(line))
        reading = uvloop.run(call(order))
        sys.stdout.buffer.write(orjson.dumps(asdict(reading)) + b"\n")
        sys.stdout.buffer.flush()
