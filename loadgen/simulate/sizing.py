"""How large the caches are and how fast requests come, by the measures of the study: factors of the trace."""

from __future__ import annotations

from loadgen.simulate.run import simulate_run
from loadgen.simulate.scenario import Scenario
from loadgen.simulate.workload import Workload
from loadgen.traces.trace import Trace

# At a cache factor of 1 the whole fleet caches this share of a trace's different blocks, as in the study;
# all caches together, so that more replicas have smaller ones.
_USUAL_SHARE = 0.2
_SHARES = {"synthetic": 0.5}
# The study's hot-spot fleet has 500,000 tokens a replica, however many there are.
_FIXED_TOKENS = {"hotspot": 500_000}
_ROUNDS = 2


def cache_blocks(trace: Trace, replicas: int, factor: float) -> int:
    """Return the blocks of each replica's cache: at least as many as the longest prompt fills.

    A replica turns away what its cache cannot hold: a share of few blocks would say nothing of routing.
    """
    longest = max((request.prompt_tokens for request in trace.requests), default=0) // trace.block_tokens
    fixed = _FIXED_TOKENS.get(trace.name)
    if fixed is not None:
        blocks = factor * fixed / trace.block_tokens
    else:
        blocks = factor * _SHARES.get(trace.name, _USUAL_SHARE) * trace.distinct_blocks() / replicas
    return max(1, longest, int(blocks))


def time_scale(workload: Workload, scenario: Scenario, utilisation: float) -> float:
    """Return by what arrivals are divided, so that replicas prefill `utilisation` of the time by round robin.

    Round robin, since that measures how heavy the traffic is, not how good a policy. 1.0 for a workload
    whose requests all come at once: its pace says nothing.
    """
    scale = 1.0
    for _ in range(_ROUNDS):
        run = simulate_run(
            workload,
            scenario.model_copy(
                update={"policy": "round_robin", "policy_options": {}, "time_scale": scale, "changes": ()}
                | {"routers": 1, "misses": False, "load_staleness_seconds": 60.0, "digest_seconds": 600.0}
            ),
        )
        if run.span_seconds == 0 or run.prefill_seconds == 0:
            return 1.0
        scale *= utilisation / run.utilisation
    return scale
