"""`simulate()`: records with all their figures, every decision, policies of one's own, the same each time."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from loadgen.simulate.simulate import SimulationError, simulate
from loadgen.simulate.sizing import cache_blocks
from loadgen.traces.catalog import open_trace
from loadgen.traces.trace import Trace, TraceError
from router.policies import policy_names
from tests.loadgen.simulate.scenes import WATCHER, chats, request, trace_of

FIELDS = (
    "trace",
    "policy",
    "replicas",
    "routers",
    "seed",
    "hit_ratio",
    "ttft_mean_seconds",
    "ttft_p50_seconds",
    "ttft_p90_seconds",
    "ttft_p99_seconds",
    "relative_to_oracle",
    "busiest_share",
    "rejected",
)
FLEET: dict[str, Any] = {"replicas": 4, "routers": 2}


def test_records_have_all_figures_in_the_plans_order() -> None:
    results = simulate(chats(), ["round_robin", ("affinity", {"use_digests": False})], seeds=[7, 3], **FLEET)
    assert [(one["policy"], one["seed"]) for one in results.records] == [
        ("round_robin", 7),
        ("affinity[use_digests=False]", 7),
        ("round_robin", 3),
        ("affinity[use_digests=False]", 3),
    ]
    for record in results.records:
        assert set(record) >= set(FIELDS)
        assert (record["trace"], record["replicas"], record["routers"]) == ("chat", 4, 2)
        assert record["requests"] == 162  # without the tenth that warms caches up
        assert record["ttft_p50_seconds"] <= record["ttft_p90_seconds"] <= record["ttft_p99_seconds"]
        assert 0.25 <= record["busiest_share"] <= 1
        assert record["rejected"] == 0
        seconds, shares = zip(*record["ttft_cdf"], strict=True)
        assert list(seconds) == sorted(seconds)
        assert (shares[0], shares[-1]) == (0, 1)


def test_what_warms_caches_up_is_not_counted() -> None:
    trace = trace_of(*(request(100.0 * number, 1001, *range(10)) for number in range(10)))
    for share, hit in ((0.0, 9), (0.1, 9), (0.5, 5)):
        results = simulate(
            trace, "round_robin", replicas=1, warm_up_share=share, cache_blocks=99, time_scale=1
        )
        (record,) = results.records
        counted = 10 - int(10 * share)
        assert record["requests"] == counted
        assert record["hit_ratio"] == pytest.approx(hit * 1000 / (counted * 1001))
        assert sum(record["uncached_by_cause"].values()) == counted * 1001 - hit * 1000
        assert [one["counted"] for one in results.decisions()].count(True) == counted


def test_relative_to_the_oracle_is_of_the_same_seed() -> None:
    both = simulate(chats(), ["oracle", "least_work"], seeds=2, **FLEET).records
    hidden = simulate(chats(), "least_work", seeds=2, **FLEET).records
    assert [one["relative_to_oracle"] for one in both if one["policy"] == "oracle"] == [1, 1]
    theirs = [one for one in both if one["policy"] == "least_work"]
    assert theirs == hidden
    for record in hidden:
        mean = next(r for r in both if r["policy"] == "oracle" and r["seed"] == record["seed"])
        assert record["relative_to_oracle"] == record["ttft_mean_seconds"] / mean["ttft_mean_seconds"]
    assert simulate(chats(), "least_work", oracle=False, **FLEET).records[0]["relative_to_oracle"] is None


def test_every_decision_can_be_had() -> None:
    results = simulate(chats(), ["round_robin", "affinity"], **FLEET)
    decisions = list(results.decisions())
    assert len(decisions) == 2 * 180
    assert {one["policy"] for one in decisions} == {"round_robin", "affinity"}
    for record in results.records:
        served = [one for one in decisions if one["policy"] == record["policy"] and one["counted"]]
        assert [one["request"] for one in served] == list(range(18, 180))
        hit = sum(one["hit_tokens"] for one in served) / sum(one["prompt_tokens"] for one in served)
        assert hit == pytest.approx(record["hit_ratio"])
        mean = sum(one["ttft_seconds"] for one in served) / len(served)
        assert mean == pytest.approx(record["ttft_mean_seconds"])
        assert {one["replica"] for one in served} == {f"replica-0-{slot}" for slot in range(4)}
        assert {one["router"] for one in served} == {0, 1}
        arrivals = [one["arrival_seconds"] for one in served]
        assert arrivals == sorted(arrivals)
    turned_away = simulate(chats(), "affinity", cache_blocks=60, time_scale=1, **FLEET)
    lost = [one for one in turned_away.decisions() if one["replica"] is None]
    assert lost
    assert {one["prompt_tokens"] for one in lost} == {7000}
    assert all(one["ttft_seconds"] is None and one["hit_tokens"] is None for one in lost)
    assert turned_away.records[0]["rejected"] == sum(one["counted"] for one in lost)


def test_a_run_is_the_same_in_processes_side_by_side() -> None:
    plan: dict[str, Any] = {"policies": ["affinity", "cache_aware"], "seeds": 2, **FLEET}
    alone, together = (simulate(chats(), jobs=jobs, **plan) for jobs in (1, 2))
    assert alone.records == together.records
    assert list(alone.decisions()) == list(together.decisions())


def test_what_fails_in_a_process_beside_is_raised_here() -> None:
    with pytest.raises(ZeroDivisionError):
        simulate(chats(), "tests.loadgen.simulate.broken", jobs=2, oracle=False, **FLEET)


def test_a_policy_of_ones_own_goes_by_its_dotted_name() -> None:
    results = simulate(chats(), [WATCHER, (WATCHER, {"tells": "replicas"})], oracle=False, **FLEET)
    assert [one["policy"] for one in results.records] == [WATCHER, f"{WATCHER}[tells=replicas]"]
    told = [one["expected_tokens"] for one in results.decisions() if one["policy"].endswith("]")]
    assert set(told) == {4}


def test_the_papers_measures_size_the_caches_and_set_the_pace() -> None:
    """By default all caches together hold a fifth of the different blocks; round robin is at 0.7."""
    trace = chats()
    usual = simulate(trace, "round_robin", oracle=False, **FLEET).records[0]
    assert usual["utilisation"] == pytest.approx(0.7, abs=0.07)
    busier = simulate(trace, "round_robin", utilisation=0.9, oracle=False, **FLEET).records[0]
    assert busier["utilisation"] > 1.1 * usual["utilisation"]
    hits = [
        simulate(trace, "affinity", cache_factor=factor, oracle=False, **FLEET).records[0]["hit_ratio"]
        for factor in (1, 2, 8)
    ]
    assert hits == sorted(hits)
    assert hits[0] < hits[2]


def test_a_cache_holds_the_longest_prompt_of_a_small_trace() -> None:
    """A fifth of its blocks, shared among many, would hold none: all would be turned away."""
    few = trace_of(request(0, 950, *range(10)), request(9, 400, 20, 21, 22, 23), request(9, 950, *range(10)))
    assert [cache_blocks(few, replicas, 1) for replicas in (1, 64)] == [9, 9]
    assert cache_blocks(few, 1, 10) == 2 * few.distinct_blocks()
    (record,) = simulate(few, "affinity", replicas=64, routers=1, oracle=False).records
    assert record["rejected"] == 0


def test_the_sizes_of_shipped_traces_are_the_studys() -> None:
    assert cache_blocks(open_trace("conversation"), 16, 1) == 2284


def test_frames_say_what_they_need() -> None:
    assert "pandas" not in sys.modules
    results = simulate(chats(), "round_robin", oracle=False, **FLEET)
    for frame in (results.to_frame, results.decisions_frame):
        with pytest.raises(ImportError, match="pandas"):
            frame()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"policies": "no_such_policy"}, "no_such_policy"),
        ({"policies": [("affinity", {"wheels": 4})]}, "wheels"),
        ({"policies": "not.there"}, "not.there"),
        # Runs go by their policy's label: they would count as one policy's, on twice the seeds.
        ({"policies": ["affinity", "round_robin", "affinity"]}, "affinity is given more than once"),
        ({"replicas": 0}, "replicas"),
        ({"routers": 65}, "routers"),
        ({"wheels": 4}, "wheels"),
        ({"load_staleness_seconds": float("nan")}, "load_staleness_seconds"),
        ({"digest_seconds": 0}, "digest_seconds"),
        ({"changes": [{"at_seconds": float("nan"), "count": 1}]}, "at_seconds"),
        ({"changes": [{"at_seconds": -1, "count": 1}]}, "at_seconds"),
        ({"changes": [{"at_seconds": 1, "count": 10**9}]}, "count"),
        ({"utilisation": 0}, "utilisation"),
        ({"utilisation": float("nan")}, "utilisation"),
        ({"cache_factor": -1}, "cache_factor"),
        ({"cache_factor": float("inf")}, "cache_factor"),
        # A seed goes by `seeds`, a policy by `policies`: these would change nothing.
        ({"seed": 3}, "seeds"),
        ({"policy": "affinity"}, "policies"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SimulationError, match=message):
        simulate(chats(), **{"policies": "round_robin", **changes})


def test_a_trace_that_is_none_is_refused() -> None:
    with pytest.raises(TraceError, match="no trace 'nope'"):
        simulate("nope")
    with pytest.raises(SimulationError, match="no requests"):
        simulate(Trace("empty", 16, []))


def test_all_shipped_policies_can_be_simulated() -> None:
    records = simulate(chats(conversations=8, turns=3), policy_names(), cache_blocks=99, **FLEET).records
    assert [one["policy"] for one in records] == policy_names()
    assert all(one["relative_to_oracle"] > 0 for one in records)
