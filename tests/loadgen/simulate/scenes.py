"""Short traces and runs for tests of the simulator."""

from __future__ import annotations

from functools import cache
from typing import Any

from loadgen.simulate.run import Run, simulate_run
from loadgen.simulate.scenario import Scenario
from loadgen.simulate.workload import Workload
from loadgen.traces.generate.kinds import generate
from loadgen.traces.trace import Trace, TraceRequest
from router.wire.report import PrefillCost

WATCHER = "tests.loadgen.simulate.watcher"
# A second, a hundredth for each token that is computed, and a ten thousandth for each that it looks back at.
PLAIN = PrefillCost(1.0, 0.01, 1e-4)
# What four replicas can just do of `chats` without a cache.
SLOW = PrefillCost(0.05, 3e-4, 1e-8)


def request(at: float, tokens: int, *ids: int, output: int = 0) -> TraceRequest:
    return TraceRequest(at, tokens, output, ids)


def trace_of(*requests: TraceRequest, block_tokens: int = 100) -> Trace:
    return Trace("made", block_tokens, requests)


def run(trace: Trace, **fields: Any) -> Run:
    """One replica and one router unless told otherwise; every request counts, and costs are plain."""
    plain: dict[str, Any] = {"policy": "round_robin", "replicas": 1, "routers": 1}
    plain |= {"warm_up_share": 0, "decode_slowdown": 0, "cost": PLAIN}
    return simulate_run(Workload.of(trace), Scenario(**(plain | fields)))


@cache
def chats(conversations: int = 30, turns: int = 6, turn_seconds: float = 20, seed: int = 3) -> Trace:
    """Chats whose turns come as fast as `turn_seconds` says, of 1,000 tokens each."""
    return generate(
        "chat",
        seed,
        conversations=conversations,
        turns=turns,
        system_tokens=1000,
        new_tokens=1000,
        output_tokens=20,
        turn_seconds=turn_seconds,
        block_tokens=100,
    )
