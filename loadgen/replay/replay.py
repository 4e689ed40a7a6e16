"""A replay: the trace against a live fleet, then the same trace through the simulator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from loadgen.client import COMPLETION_PATH, Client, ClientLimits
from loadgen.load import LoadError, first_model
from loadgen.replay.drive import Pace, Replayed, drive
from loadgen.replay.figures import Figures, live_figures, simulated_figures
from loadgen.replay.options import ReplayOptions
from loadgen.replay.prompts import Prompts
from loadgen.simulate.figures import mean_ttft_seconds
from loadgen.simulate.run import simulate_run
from loadgen.simulate.scenario import Scenario
from loadgen.simulate.workload import Workload
from loadgen.traces.trace import Trace
from router.policies import PolicyError, load_policy


class ReplayError(RuntimeError):
    """The replay cannot begin or be compared; the message says why."""


@dataclass(frozen=True, slots=True)
class Live:
    """What came of the live half: the trace that was played, each request, and who answered."""

    trace: Trace
    replayed: list[Replayed]

    @property
    def replicas(self) -> int:
        """How many replicas have answered."""
        return len({one.answer.replica for one in self.replayed} - {None})


def shortened(trace: Trace, options: ReplayOptions) -> Trace:
    """Return the requests of the trace that are asked for."""
    return trace if options.requests is None else replace(trace, requests=trace.requests[: options.requests])


async def replay_live(
    trace: Trace,
    options: ReplayOptions,
    api_key: str | None = None,
    on_answer: Callable[[Replayed], None] = lambda replayed: None,
) -> Live:
    """Drive the trace; ReplayError if the address lists no model. Failed requests are in what is returned."""
    try:
        model = options.model or await first_model(options.url, api_key)
    except LoadError as error:
        raise ReplayError(str(error)) from error
    prompts = Prompts(trace, options.prompt, options.first_token_id, options.token_ids)
    pace = Pace(options.time_scale, options.in_flight, options.max_output_tokens)
    limits = ClientLimits(total_seconds=options.total_seconds)
    async with Client(options.url, limits, api_key, COMPLETION_PATH) as client:
        return Live(trace, await drive(trace, prompts, client, model, pace, on_answer))


def compare(live: Live, options: ReplayOptions, changes: Mapping[str, Any]) -> list[Figures]:
    """Simulate what was replayed, and return the figures of both, the live ones first.

    The simulated fleet has as many replicas as have answered, one router, and `cache_tokens` each;
    `changes` to its scenario go before all that. ReplayError if they do not fit.
    """
    scenario = scenario_of(live.trace, options, live.replicas, changes)
    workload = Workload.of(_with_outputs(live.trace, options))
    run = simulate_run(workload, scenario)
    oracle = mean_ttft_seconds(simulate_run(workload, _as_oracle(scenario)))
    name = live.trace.name
    counted_from = int(len(live.trace.requests) * scenario.warm_up_share)
    return [
        live_figures(name, options.policy, live.replayed, counted_from, oracle),
        simulated_figures(name, scenario.policy, scenario.routers, scenario.seed, run, oracle),
    ]


def scenario_of(trace: Trace, options: ReplayOptions, replicas: int, changes: Mapping[str, Any]) -> Scenario:
    """Return the simulated twin of a fleet; ReplayError for changes that are none."""
    twin = {
        "policy": options.policy,
        "replicas": max(1, replicas),
        "routers": 1,
        "cache_blocks": max(1, options.cache_tokens // trace.block_tokens),
        "time_scale": options.time_scale,
        "misses": False,
    }
    try:
        scenario = Scenario(**{**twin, **changes})
        load_policy(scenario.policy, scenario.policy_options)
    except ValidationError as error:
        problem = error.errors()[0]
        raise ReplayError(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}") from error
    except PolicyError as error:
        raise ReplayError(str(error)) from error
    return scenario


def _as_oracle(scenario: Scenario) -> Scenario:
    return scenario.model_copy(update={"policy": "oracle", "policy_options": {}})


def _with_outputs(trace: Trace, options: ReplayOptions) -> Trace:
    """Return the trace with its answers cut as they were when it was played."""
    limit = options.max_output_tokens
    if limit is None:
        return trace
    return replace(
        trace,
        requests=[
            replace(request, output_tokens=min(request.output_tokens, limit)) for request in trace.requests
        ],
    )
