"""A wrong S: shared by the whole fleet it costs little, and that of one replica hurts only itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from loadgen.simulate.run import Run, simulate_run
from loadgen.simulate.scenario import Scenario
from loadgen.simulate.workload import Workload
from loadgen.traces.catalog import open_trace


@pytest.fixture(scope="module")
def workload() -> Workload:
    """The first requests of the trace that suffers most."""
    trace = open_trace("hotspot")
    return Workload.of(replace(trace, requests=trace.requests[:1500]))


@pytest.fixture(scope="module")
def right(workload: Workload) -> Run:
    """The run in which S is what it is taken for."""
    return simulated(workload)


def simulated(workload: Workload, **believed: Any) -> Run:
    """Run at the load and cache of the study."""
    scenario = Scenario(time_scale=1.379, cache_blocks=3906, seed=1, misses=False, **believed)
    return simulate_run(workload, scenario)


def mean(run: Run, replicas: range) -> float:
    """Mean seconds to the first token of what these replicas served."""
    served = np.isin(run.replica[run.counted_from :], replicas)
    return float(run.ttft_seconds[run.counted_from :][served].mean())


@pytest.mark.parametrize("scale", [1 / 3, 3.0])
def test_an_error_that_all_share_costs_little(workload: Workload, right: Run, scale: float) -> None:
    wrong = simulated(workload, believed_scale=scale)
    # Over the whole trace it is at most 15 %; so short a run is noisier.
    assert mean(wrong, range(16)) < 1.3 * mean(right, range(16))


@pytest.mark.parametrize("scale", [1 / 3, 3.0])
def test_one_wrong_replica_hurts_only_itself(workload: Workload, right: Run, scale: float) -> None:
    wrong = simulated(workload, believed_scale_of_first=scale)
    # Who is taken for slow serves less, and the other fifteen do its share: a fifteenth more.
    assert mean(wrong, range(1, 16)) < 1.2 * mean(right, range(1, 16))
    ratio = mean(wrong, range(1)) / mean(right, range(1))
    assert ratio > 3 if scale < 1 else ratio < 0.8
