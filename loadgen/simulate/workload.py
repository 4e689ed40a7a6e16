"""A trace made ready for simulation: each request's ask, built once for all runs."""

from __future__ import annotations

from dataclasses import dataclass

from xxhash import xxh3_128_digest

from loadgen.traces.trace import Trace
from router.chain.chain import Chain
from router.placement.ask import Ask

IDENTITY = "simulated"
MODEL = "simulated"


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One request of a workload. `hittable` is how many leading blocks may be served from a cache."""

    number: int
    arrival_seconds: float
    ask: Ask
    names: tuple[bytes, ...]
    hittable: int
    output_tokens: int

    @property
    def prompt_tokens(self) -> int:
        """The prompt's length."""
        return self.ask.prompt_tokens


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """The requests of a trace, in order of arrival, at the trace's own pace."""

    name: str
    block_tokens: int
    requests: tuple[Request, ...]

    @classmethod
    def of(cls, trace: Trace) -> Workload:
        """Name the blocks of a trace as a router would: equal prefixes alike."""
        names: dict[int, bytes] = {}

        def name(block: int) -> bytes:
            known = names.get(block)
            if known is None:
                known = names[block] = xxh3_128_digest(str(block).encode())
            return known

        requests = []
        for number, request in enumerate(trace.requests):
            chain = tuple(map(name, trace.full_blocks(request)))
            length = request.prompt_tokens
            session = request.session
            ask = Ask(
                MODEL,
                length,
                spread=xxh3_128_digest(b"request %d" % number),
                chain=Chain(IDENTITY, chain, b"", 0, trace.block_tokens, length),
                session=xxh3_128_digest(session.encode()) if session is not None else None,
            )
            hittable = min(len(chain), (length - 1) // trace.block_tokens)
            arrival = request.arrival_seconds
            requests.append(Request(number, arrival, ask, chain, hittable, request.output_tokens))
        return cls(trace.name, trace.block_tokens, tuple(requests))
