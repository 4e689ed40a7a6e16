"""Figures: the same of live and of simulated runs."""

from __future__ import annotations

import io

import numpy as np
from rich.console import Console

from loadgen.client import Answer
from loadgen.replay.drive import Replayed
from loadgen.replay.figures import live_figures, side_by_side, simulated_figures
from loadgen.simulate.figures import mean_ttft_seconds
from loadgen.simulate.run import simulate_run
from loadgen.simulate.scenario import Scenario
from loadgen.simulate.workload import Workload
from loadgen.traces.generate.kinds import generate

FIELDS = [
    *("source", "trace", "policy", "replicas", "routers", "seed", "hit_ratio", "ttft_mean_seconds"),
    *("ttft_p50_seconds", "ttft_p90_seconds", "ttft_p99_seconds", "relative_to_oracle", "busiest_share"),
    "rejected",
]


def replayed(number: int, replica: str, cached: int | None, first: float) -> Replayed:
    answer = Answer(replica=replica, prompt_tokens=100, cached_tokens=cached, first_token_seconds=first)
    return Replayed(number, 0.0, 0.0, answer)


def test_live_figures_are_of_counted_whole_answers() -> None:
    runs = [
        replayed(0, "c", 100, 100.0),
        replayed(1, "a", 80, 1.0),
        replayed(2, "a", 40, 2.0),
        replayed(3, "b", None, 3.0),
        Replayed(4, 0.0, 0.0, Answer(replica="b", prompt_tokens=100, cached_tokens=0, error="timeout")),
    ]
    figures = live_figures("t", "affinity", runs, 1, 4.0)
    assert list(figures.to_json()) == FIELDS
    assert figures.source == "live"
    assert figures.replicas == 3
    assert figures.hit_ratio == 0.6
    assert (figures.ttft_mean_seconds, figures.ttft_p50_seconds) == (2.0, 2.0)
    assert figures.relative_to_oracle == 0.5
    assert figures.busiest_share == 2 / 3
    assert figures.rejected == 1


def test_figures_of_nothing_are_none() -> None:
    figures = live_figures("t", "affinity", [], 0, None)
    assert (figures.hit_ratio, figures.ttft_mean_seconds, figures.busiest_share) == (None, None, None)
    assert (figures.replicas, figures.rejected) == (0, 0)


def test_simulated_figures_are_those_of_the_run() -> None:
    trace = generate("chat", 1, conversations=20, turns=4)
    scenario = Scenario(policy="round_robin", replicas=4, routers=2, cache_blocks=2000, seed=3, misses=False)
    run = simulate_run(Workload.of(trace), scenario)
    figures = simulated_figures("chat", "round_robin", 2, 3, run, mean_ttft_seconds(run))
    assert list(figures.to_json()) == FIELDS
    assert (figures.source, figures.replicas, figures.routers, figures.seed) == ("simulated", 4, 2, 3)
    counted = slice(8, None)
    assert figures.hit_ratio == run.hit_tokens[counted].sum() / run.prompt_tokens[counted].sum()
    assert figures.ttft_p99_seconds == np.quantile(run.ttft_seconds[counted], 0.99)
    assert figures.relative_to_oracle == 1.0
    assert figures.rejected == 0
    table = io.StringIO()
    live = live_figures("chat", "round_robin", [replayed(0, "a", 80, 1.0)], 0, None)
    Console(file=table, width=100).print(side_by_side([live, figures]))
    assert "live" in table.getvalue()
    assert "simulated" in table.getvalue()
    assert "0.800" in table.getvalue()


def test_what_no_cache_holds_is_rejected() -> None:
    trace = generate("chat", 1, conversations=2, turns=2)
    run = simulate_run(Workload.of(trace), Scenario(replicas=1, cache_blocks=1, misses=False))
    figures = simulated_figures("chat", "affinity", 4, 0, run, mean_ttft_seconds(run))
    assert (figures.rejected, figures.hit_ratio, figures.busiest_share) == (4, None, None)
