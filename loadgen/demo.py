"""The demo: one seeded chat workload on one fleet under two policies, and what the difference is."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from rich.console import Console

from loadgen.arrivals import Closed
from loadgen.children import LaunchError
from loadgen.client import Client, ClientLimits
from loadgen.drive import Run, RunLimits, drive
from loadgen.launch import Fleet, FleetPlan, bundled_model
from loadgen.progress import turn_progress
from loadgen.report import Summary, summarise
from loadgen.snippets import how_to_ask
from loadgen.table import comparison
from loadgen.workloads.multi_turn import MultiTurn
from loadgen.workloads.session import Ask

_BEFORE = "round_robin"
_AFTER = "affinity"
_UP_URL = "http://127.0.0.1:8080"


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """What the demo asks, the same under each policy.

    Sizes are those of a machine that computes 200 tokens a second on each of two cores. The number of users
    is no multiple of the replicas', or round robin would bring each back to its own. There are enough chats
    that they spread, and enough turns that a chat's history outweighs each new message.
    """

    sessions: int = 16
    turns: int = 9
    turn_tokens: int = 80
    system_tokens: int = 60
    answer_tokens: int = 8
    concurrency: int = 7
    think_seconds: float = 0.2
    seed: int = 1
    limit_seconds: float = 285.0


class DemoError(RuntimeError):
    """The demo could not be run to its end."""


async def demonstrate(plan: DemoPlan, console: Console) -> None:
    """Run the demo and print its table; LaunchError or DemoError where it fails."""
    try:
        async with asyncio.timeout(plan.limit_seconds):
            runs = await _run(plan, console)
    except TimeoutError:
        raise DemoError(
            f"not done within {plan.limit_seconds:.0f} s: the machine is too slow or busy for the demo"
        ) from None
    console.print()
    console.print(comparison(runs, "The same chats on three replicas, under two policies"))
    console.print(effect(runs[_BEFORE], runs[_AFTER]), highlight=False, soft_wrap=True)
    missed = shortfalls(runs[_BEFORE], runs[_AFTER])
    if missed:
        console.print(
            "[yellow]This run fell short of what the demo is for; other work on the machine can do that:"
        )
        for line in missed:
            console.print(f"- {line}", highlight=False)
    console.print("\nKeep such a fleet up with:  make up  (or .venv/bin/kvring up)\n", highlight=False)
    console.print(how_to_ask(_UP_URL, FleetPlan().model), highlight=False, soft_wrap=True, markup=False)
    failed = sum(run.errors for run in runs.values())
    if failed:
        raise DemoError(f"{failed} requests failed")


async def _run(plan: DemoPlan, console: Console) -> dict[str, Summary]:
    console.print("Preparing the model (the first time takes some seconds) ...")
    directory = await bundled_model()
    console.print("Starting 3 replicas with a model each, and a router ...")
    runs = {}
    async with Fleet(FleetPlan(policy=_BEFORE, model_directory=directory)) as fleet:
        console.print(f"Up. Logs: {fleet.logs}", soft_wrap=True)
        await _warm_up(fleet)
        for policy in (_BEFORE, _AFTER):
            await fleet.restart_router(policy)
            await fleet.reset_caches()
            run = await _drive(plan, fleet, policy, console)
            for _, failure in fleet.take_ended():
                raise failure
            runs[policy] = summarise(run)
    return runs


async def _warm_up(fleet: Fleet) -> None:
    """Let each replica answer once: a model's first step is slower than all others."""
    ask = Ask(FleetPlan().model, 4)
    for name, url in fleet.replica_urls.items():
        async with Client(url) as client:
            answer = await client.ask(ask.body([{"role": "user", "content": "Say hello. " * 50}]))
        if answer.error is not None:
            raise LaunchError(f"{name} does not answer ({answer.error}: {answer.message}); see {fleet.logs}")


async def _drive(plan: DemoPlan, fleet: Fleet, policy: str, console: Console) -> Run:
    workload = MultiTurn(
        Ask(FleetPlan().model, plan.answer_tokens),
        plan.seed,
        plan.turns,
        plan.turn_tokens,
        plan.system_tokens,
    )
    limits = RunLimits(sessions=plan.sessions, duration_seconds=plan.limit_seconds)
    arrivals = Closed(plan.concurrency, plan.think_seconds)
    async with Client(fleet.url, ClientLimits(total_seconds=120.0)) as client:
        with turn_progress(policy, plan.sessions * plan.turns, console) as on_turn:
            return await drive(workload, arrivals, client, limits, seed=plan.seed, on_turn=on_turn)


def effect(before: Summary, after: Summary) -> str:
    """Say in a few words what changed, as ratios of the second run to the first."""
    parts = [f"computed prompt tokens x {after.computed_tokens / max(1, before.computed_tokens):.2f}"]
    for name, old, new in _latencies(before, after):
        if old and new is not None:
            parts.append(f"{name} x {new / old:.2f}")
    return f"{_AFTER} against {_BEFORE}: {', '.join(parts)}"


def shortfalls(before: Summary, after: Summary) -> list[str]:
    """Return what the second run lacks of what it should show, a line each; empty if it shows all."""
    missed = []
    for name, run in ((_BEFORE, before), (_AFTER, after)):
        if run.errors:
            missed.append(
                f"{run.errors} of {run.requests} requests failed under {name}: {_kinds(run.errors_by_kind)}"
            )
    if not before.prompt_tokens or after.computed_tokens > before.computed_tokens / 2:
        missed.append(
            f"{after.computed_tokens} computed tokens are more than half of {before.computed_tokens}"
        )
    missed += [
        f"{name} is not lower: {_seconds(new)} against {_seconds(old)}"
        for name, old, new in _latencies(before, after)
        if old is None or new is None or new >= old
    ]
    busiest = after.busiest_replica_ratio
    if busiest is None or busiest > 0.45:
        share = "an unknown share" if busiest is None else f"{busiest:.1%}"
        missed.append(f"the busiest replica had {share} of the requests, more than 45%")
    return missed


def _latencies(before: Summary, after: Summary) -> list[tuple[str, float | None, float | None]]:
    return [
        ("TTFT p50", before.ttft_p50_seconds, after.ttft_p50_seconds),
        ("TTFT p99", before.ttft_p99_seconds, after.ttft_p99_seconds),
    ]


def _seconds(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f} s"


def _kinds(errors: Mapping[str, int]) -> str:
    return ", ".join(f"{kind} {count}" for kind, count in errors.items())
