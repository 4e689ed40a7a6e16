"""Simulations by the dozen: traces by policies by seeds, each beside the oracle on the same seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from loadgen.simulate.figures import decisions_of, mean_ttft_seconds, record_of
from loadgen.simulate.processes import side_by_side
from loadgen.simulate.run import Run, simulate_run
from loadgen.simulate.scenario import Scenario
from loadgen.simulate.sizing import cache_blocks, time_scale
from loadgen.simulate.workload import Workload
from loadgen.traces.catalog import open_trace
from loadgen.traces.trace import Trace
from router.policies import PolicyError, load_policy

ORACLE = "oracle"
# Of what a study uses: a thousandfold has long ceased to mean anything.
_MOST = 1000
# Fields of a scenario that a plan gives itself, run by run, and what they go by there.
_PLANNED = {"policy": "policies", "policy_options": "policies", "seed": "seeds"}


class SimulationError(ValueError):
    """What was asked for cannot be simulated; the message says why."""


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """A policy with options, and the name that it goes by in records."""

    label: str
    name: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to simulate. `fleet` has a scenario's fields; where it has no size or pace, the factors give it.

    `traces` are names, paths, or traces. `jobs` processes work side by side. Without `oracle`, nothing is
    relative to one.
    """

    traces: Sequence[str | Path | Trace]
    policies: Sequence[PolicyChoice]
    seeds: Sequence[int] = (0,)
    cache_factor: float = 1.0
    utilisation: float = 0.7
    fleet: Mapping[str, Any] = field(default_factory=dict)
    oracle: bool = True
    jobs: int = 1


@dataclass(frozen=True, slots=True)
class Results:
    """Records, one a run, in the plan's order. `runs` are the same runs, request by request."""

    records: Sequence[dict[str, Any]]
    runs: Sequence[Run]

    def decisions(self) -> Iterable[dict[str, Any]]:
        """Yield every request of every run, with its run's trace, policy and seed."""
        for record, run in zip(self.records, self.runs, strict=True):
            key = {name: record[name] for name in ("trace", "policy", "seed")}
            for decision in decisions_of(run):
                yield key | decision

    def to_frame(self) -> Any:
        """Return the records as a pandas data frame; ImportError without pandas."""
        return _frame(self.records)

    def decisions_frame(self) -> Any:
        """Return every decision as a pandas data frame; ImportError without pandas."""
        return _frame(self.decisions())


def _frame(records: Iterable[dict[str, Any]]) -> Any:
    try:
        import pandas
    except ImportError as error:
        raise ImportError("data frames need pandas, which is not installed: pip install pandas") from error
    return pandas.DataFrame.from_records(list(records))


def simulate(
    trace: str | Path | Trace | Sequence[str | Path | Trace] = "conversation",
    policies: str | Sequence[str | tuple[str, Mapping[str, Any]]] = "affinity",
    *,
    seeds: int | Sequence[int] = 1,
    cache_factor: float = 1.0,
    utilisation: float = 0.7,
    oracle: bool = True,
    jobs: int = 1,
    **fleet: Any,
) -> Results:
    """Simulate and return the results. SimulationError or TraceError where something does not fit.

    `policies` are names, dotted names of your own, or pairs of a name and options; `seeds` a count or the
    seeds themselves; `fleet` are fields of a Scenario, such as replicas, routers, load_staleness_seconds.
    """
    traces = [trace] if isinstance(trace, str | Path | Trace) else list(trace)
    named = [policies] if isinstance(policies, str) else policies
    return run_plan(
        Plan(
            traces=traces,
            policies=[policy_choice(policy) for policy in named],
            seeds=range(seeds) if isinstance(seeds, int) else seeds,
            cache_factor=cache_factor,
            utilisation=utilisation,
            fleet=fleet,
            oracle=oracle,
            jobs=jobs,
        )
    )


def policy_choice(policy: str | tuple[str, Mapping[str, Any]]) -> PolicyChoice:
    """Read a policy's name, or a name with options."""
    if isinstance(policy, str):
        return PolicyChoice(policy, policy)
    name, options = policy
    shown = ",".join(f"{key}={value}" for key, value in options.items())
    return PolicyChoice(f"{name}[{shown}]" if shown else name, name, options)


@dataclass(frozen=True, slots=True)
class _Task:
    policy: PolicyChoice
    seed: int


Progress = Callable[[str, int, int], None]


def run_plan(plan: Plan, progress: Progress = lambda what, done, of: None) -> Results:
    """Run a plan; `progress` is told what runs, how many requests or runs are done, and of how many."""
    fleet = _fleet(plan)
    labels = Counter(policy.label for policy in plan.policies)
    for policy in plan.policies:
        if labels[policy.label] > 1:
            raise SimulationError(f"{policy.label} is given more than once: its runs could not be told apart")
        try:
            load_policy(policy.name, policy.options)
        except PolicyError as error:
            raise SimulationError(str(error)) from error
    records: list[dict[str, Any]] = []
    runs: list[Run] = []
    # Trace by trace: a trace made ready takes some hundred megabytes.
    for given in plan.traces:
        trace = given if isinstance(given, Trace) else open_trace(given)
        if any(record["trace"] == trace.name for record in records):
            raise SimulationError(f"two traces are called {trace.name}: their runs could not be told apart")
        for task, run, oracle_mean in _run_trace(plan, trace, fleet, progress):
            label, seed = task.policy.label, task.seed
            counts = fleet.replicas, fleet.routers
            records.append(record_of(run, trace.name, label, *counts, seed, oracle_mean))
            runs.append(run)
    return Results(records, runs)


def _run_trace(
    plan: Plan, trace: Trace, fleet: Scenario, progress: Progress
) -> list[tuple[_Task, Run, float | None]]:
    """Return every run over one trace, with the mean TTFT of the oracle on its seed."""
    if not trace.requests:
        raise SimulationError(f"the trace {trace.name} has no requests")
    workload = Workload.of(trace)
    if "cache_blocks" not in fleet.model_fields_set:
        size = cache_blocks(trace, fleet.replicas, plan.cache_factor)
        fleet = fleet.model_copy(update={"cache_blocks": size})
    if "time_scale" not in fleet.model_fields_set:
        progress(f"{trace.name}: measuring its load", 0, 1)
        fleet = fleet.model_copy(update={"time_scale": time_scale(workload, fleet, plan.utilisation)})
    policies = list(plan.policies)
    if plan.oracle and not any(policy.name == ORACLE for policy in policies):
        policies.append(PolicyChoice(ORACLE, ORACLE))
    tasks = [_Task(policy, seed) for seed in plan.seeds for policy in policies]

    def work(task: _Task, told: Callable[[int], None] = lambda done: None) -> Run:
        policy = {"policy": task.policy.name, "policy_options": dict(task.policy.options)}
        return simulate_run(workload, fleet.model_copy(update={**policy, "seed": task.seed}), told)

    done: dict[int, Run] = {}
    if plan.jobs == 1:
        for number, task in enumerate(tasks):
            what = f"{trace.name} {task.policy.label} ({number + 1} of {len(tasks)})"
            done[number] = work(task, partial(_tell, progress, what, len(workload.requests)))
    else:
        for number, run in side_by_side(work, tasks, plan.jobs):
            done[number] = run
            progress(f"{trace.name}, {plan.jobs} runs at once", len(done), len(tasks))
    oracles = {
        task.seed: mean_ttft_seconds(done[number])
        for number, task in enumerate(tasks)
        if plan.oracle and task.policy.name == ORACLE
    }
    return [
        (task, done[number], oracles.get(task.seed))
        for number, task in enumerate(tasks)
        if task.policy in plan.policies
    ]


def _tell(progress: Progress, what: str, of: int, done: int) -> None:
    progress(what, done, of)


def _fleet(plan: Plan) -> Scenario:
    for name, instead in _PLANNED.items():
        if name in plan.fleet:
            raise SimulationError(f"{name} differs from run to run: it is given by {instead}")
    for name, factor in (("cache_factor", plan.cache_factor), ("utilisation", plan.utilisation)):
        if not 0 < factor <= _MOST:
            raise SimulationError(f"{name} is a number above 0 and at most {_MOST:,}, not {factor}")
    try:
        return Scenario(**plan.fleet)
    except ValidationError as error:
        lines = (f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors())
        raise SimulationError("; ".join(lines)) from error
