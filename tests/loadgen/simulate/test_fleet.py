"""Fleets in virtual time: stale routers that share nothing, replicas that come and go, misses by cause."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from typing import Any

import numpy as np
import pytest

from loadgen.simulate.run import Run, simulate_run
from loadgen.simulate.scenario import Scenario
from loadgen.simulate.workload import Workload
from loadgen.traces.trace import Trace
from router.policies import policy_names
from router.wire.report import PrefillCost
from tests.loadgen.simulate.scenes import PLAIN, SLOW, WATCHER, chats, request, run, trace_of

FLEET: dict[str, Any] = {"replicas": 4, "routers": 2, "cache_blocks": 300, "cost": SLOW}


def burst(count: int) -> Trace:
    """Prompts that share nothing, all within a tenth of a second."""
    return trace_of(*(request(number / count / 10, 100, number) for number in range(count)))


@pytest.mark.parametrize(("staleness", "used"), [(0.0, 8), (60.0, 1)])
def test_many_routers_herd_when_load_is_stale(staleness: float, used: int) -> None:
    # Each router sees few requests of its own, and none of the others'.
    done = run(burst(8), policy=WATCHER, replicas=8, routers=64, load_staleness_seconds=staleness, seed=4)
    assert len(set(done.router.tolist())) == 8
    assert len(set(done.replica.tolist())) == used


def test_one_router_knows_what_it_sent_however_stale_reports_are() -> None:
    done = run(burst(8), policy=WATCHER, replicas=8, load_staleness_seconds=60.0)
    assert len(set(done.replica.tolist())) == 8


def test_stale_load_costs_time() -> None:
    means = [
        run(
            chats(turn_seconds=30), policy="least_work", **FLEET | {"routers": 8}, load_staleness_seconds=age
        ).ttft_seconds.mean()
        for age in (0.0, 60.0)
    ]
    assert means[1] > 1.05 * means[0]


def test_routers_share_nothing() -> None:
    done = run(chats(), policy=WATCHER, policy_options={"tells": "commits"}, **FLEET | {"routers": 4})
    for router in range(4):
        told = done.expected_tokens[done.router == router].tolist()
        assert told == list(range(len(told)))
        assert len(told) > 20


def test_what_replicas_tell_of_their_caches_is_as_old_as_digests_are() -> None:
    # The second router learns where a prompt is only by a digest.
    trace = trace_of(*(request(10.0 * number, 1001, *range(10)) for number in range(12)))
    hits = {
        seconds: run(
            trace, policy="weighted_scorers", replicas=8, routers=8, digest_seconds=seconds
        ).hit_tokens[2:]
        for seconds in (1.0, 600.0)
    }
    assert (hits[1.0] == 1000).all()


@pytest.mark.parametrize("policy", ["affinity", "round_robin", "oracle", "kvaware"])
def test_replicas_that_fail_lose_no_request(policy: str) -> None:
    trace = burst(60)
    done = run(
        trace,
        policy=policy,
        **FLEET | {"cost": PLAIN},
        changes=[{"at_seconds": 3.0, "count": -2}],
        load_staleness_seconds=0.5,
    )
    ends = done.arrival_seconds + done.ttft_seconds
    assert not np.isnan(done.ttft_seconds).any()
    left = ends[done.replica >= 2]
    # Two prefills of 2.5 s and one begun in each; whatever waited there went elsewhere.
    assert len(left) <= 2
    assert (left <= 3.0).all()
    assert Counter(done.replica.tolist()).total() == 60
    assert set(done.replica[ends > 3.0].tolist()) == {0, 1}


def test_a_replica_that_failed_gets_nothing_more_and_the_last_one_stays() -> None:
    trace = chats()
    half = trace.requests[len(trace.requests) // 2].arrival_seconds
    done = run(trace, policy="affinity", **FLEET, changes=[{"at_seconds": half, "count": -9}])
    after = done.arrival_seconds > half
    assert set(done.replica[after].tolist()) == {0}
    assert set(done.replica[~after].tolist()) >= {0, 1}
    assert not np.isnan(done.ttft_seconds).any()
    # Those it had not answered arrived before, and ended elsewhere.
    assert done.uncached["routed_by_membership"] > 0


@pytest.mark.parametrize("policy", ["affinity", "round_robin", "least_work", "power_of_two"])
def test_a_replica_that_joins_is_empty_and_gets_its_share(policy: str) -> None:
    trace = chats(conversations=60, turn_seconds=60)
    joins = trace.requests[len(trace.requests) // 3].arrival_seconds
    done = run(trace, policy=policy, **FLEET | {"replicas": 3}, changes=[{"at_seconds": joins, "count": 1}])
    assert done.replica_names == tuple(f"replica-0-{slot}" for slot in range(4))
    on_it = np.flatnonzero(done.replica == 3)
    assert (done.arrival_seconds[on_it] >= joins).all()
    # Nothing is there for the first that comes.
    assert done.hit_tokens[on_it[0]] == 0
    share = len(on_it) / (done.arrival_seconds >= joins).sum()
    assert 0.12 < share < 0.5


def test_a_replica_that_joins_is_seen_by_all_routers() -> None:
    trace = trace_of(*(request(float(number), 100, number) for number in range(20)))
    told = run(
        trace,
        policy=WATCHER,
        policy_options={"tells": "replicas"},
        replicas=2,
        routers=3,
        changes=[{"at_seconds": 14.5, "count": -1}, {"at_seconds": 4.5, "count": 3}],
    ).expected_tokens
    assert told.tolist() == [2] * 5 + [5] * 10 + [4] * 5


@pytest.mark.parametrize("policy", policy_names())
@pytest.mark.parametrize("changes", [(), ({"at_seconds": 40, "count": -2}, {"at_seconds": 60, "count": 1})])
def test_misses_by_cause_add_up(policy: str, changes: tuple[dict[str, float], ...]) -> None:
    done = run(chats(), policy=policy, **FLEET, changes=changes, warm_up_share=0.2)
    counted = slice(done.counted_from, None)
    assert done.counted_from == 36
    uncached = done.prompt_tokens[counted] - done.hit_tokens[counted]
    assert sum(done.uncached.values()) == uncached[done.replica[counted] >= 0].sum()
    assert done.uncached["cold"] > 0
    assert "unknown" not in done.uncached
    assert all(tokens > 0 for tokens in done.uncached.values())


def test_misses_have_the_cause_that_they_have() -> None:
    trace = trace_of(
        request(0, 1050, *range(10)),
        request(50, 1050, *range(10)),
        request(100, 1050, *range(10)),
        request(150, 3000, *range(100, 130)),
        request(200, 1050, *range(10)),
    )
    spread = run(trace, policy="round_robin", replicas=2)
    # The second is sent elsewhere, the third and the last hit. Half a block never does.
    assert spread.uncached == {"cold": 1000 + 2900, "partial_block": 4 * 50 + 100, "routed_by_load": 1000}
    small = run(trace, replicas=1, cache_blocks=30)
    assert small.uncached == {"cold": 1000 + 2900, "partial_block": 4 * 50 + 100, "evicted": 1000}
    assert run(trace, misses=False).uncached == {}


def test_what_a_lost_replica_held_is_told_from_what_was_never_there() -> None:
    one, other = range(10), range(50, 60)
    times = zip((0, 100, 200, 300), (one, other, one, other), strict=True)
    done = run(
        trace_of(*(request(at, 1001, *ids) for at, ids in times)),
        replicas=2,
        changes=[{"at_seconds": 199, "count": -1}],
    )
    # Round robin had put one on each replica.
    assert sorted(done.hit_tokens.tolist()) == [0, 0, 0, 1000]
    assert done.uncached == {"cold": 2000, "partial_block": 4, "routed_by_membership": 1000}


def test_what_a_replica_held_that_left_long_ago_counts_as_evicted() -> None:
    one, other = range(10), range(50, 60)
    for back, cause in ((790, "routed_by_membership"), (810, "evicted")):
        times = zip((0, 100, back, back + 1), (one, other, one, other), strict=True)
        done = run(
            trace_of(*(request(at, 1001, *ids) for at, ids in times)),
            replicas=2,
            changes=[{"at_seconds": 199, "count": -1}],
        )
        assert done.uncached == {"cold": 2000, "partial_block": 4, cause: 1000}


@pytest.mark.parametrize("policy", ["affinity", "cache_aware", "least_work"])
def test_only_decisions_that_read_a_digest_were_misled_by_one(policy: str) -> None:
    # Small caches, and digests that are old: they tell of much that is gone.
    old = FLEET | {"cache_blocks": 100, "digest_seconds": 25}
    options = {"use_digests": False} if policy == "affinity" else {}
    blind = run(chats(turn_seconds=60), policy=policy, policy_options=options, **old)
    assert "stale_digest" not in blind.uncached
    reading = run(chats(turn_seconds=60), policy="affinity", **old).uncached
    assert 0 < reading["stale_digest"] < sum(reading.values()) / 2


@pytest.mark.parametrize("reads", [True, False])
def test_a_digest_misled_by_what_it_told_and_was_believed(reads: bool) -> None:
    trace = trace_of(
        request(0, 1001, *range(10)),
        request(250, 1501, *range(20, 35)),
        request(251, 1501, *range(10), *range(40, 45)),
    )
    done = run(
        trace,
        policy=WATCHER,
        # It expects more than there ever was.
        policy_options={"tells": "prefill", "reads_digests": reads},
        cost=PrefillCost(5, 1e-5, 0),
        cache_blocks=15,
        digest_seconds=100,
    )
    assert done.expected_tokens.tolist() == [5010, 5015, 5015]
    told = {"stale_digest": 1000} if reads else {"evicted": 1000}
    assert done.uncached == {"cold": 3000, "partial_block": 3} | told


def test_utilisation_is_of_the_replicas_that_were_there() -> None:
    trace = trace_of(request(0, 100, 1), request(0, 100, 2), request(20, 100, 3), request(40, 100, 4))
    changes = [{"at_seconds": 1, "count": -1}, {"at_seconds": 30, "count": 3}, {"at_seconds": 99, "count": 5}]
    done = run(trace, replicas=2, changes=changes)
    # 2.5 s each; one was broken off after a second, and begun anew.
    assert done.prefill_seconds == pytest.approx(4 * 2.5 + 1)
    assert done.replica_seconds == pytest.approx(40 + 1 + 3 * 10)
    assert done.utilisation == pytest.approx(11 / 71)


def test_the_same_seed_gives_the_same_run_and_another_another() -> None:
    def of(seed: int) -> Run:
        return run(chats(), policy="affinity", **FLEET, seed=seed)

    one, again, other = of(5), of(5), of(6)
    for name in ("replica", "router", "hit_tokens", "expected_tokens", "ttft_seconds"):
        assert np.array_equal(getattr(one, name), getattr(again, name))
    assert one.uncached == again.uncached
    assert not np.array_equal(one.router, other.router)
    assert not np.array_equal(one.ttft_seconds, other.ttft_seconds)


def test_the_oracle_is_hard_to_beat() -> None:
    trace = chats(turn_seconds=30)
    means = {
        policy: run(trace, policy=policy, **FLEET | {"cache_blocks": 2000}).ttft_seconds.mean()
        for policy in policy_names()
    }
    oracle = means.pop("oracle")
    # It is greedy, so others may win a little; none may win much.
    assert min(means.values()) > 0.95 * oracle, (oracle, means)
    assert means["affinity"] < 1.3 * oracle
    assert means["round_robin"] > 1.5 * oracle


@pytest.mark.parametrize("policy", ["affinity", "oracle", "cache_aware"])
def test_hundreds_of_replicas_can_be_simulated(policy: str) -> None:
    done = run(chats(), policy=policy, **FLEET | {"replicas": 256})
    assert not np.isnan(done.ttft_seconds).any()
    assert len(done.replica_names) == 256
    assert done.hit_tokens.sum() > 0


def test_memory_does_not_grow_with_the_requests() -> None:
    def peak(count: int) -> int:
        prompts = [range(first, first + 10) for first in range(0, 500, 10)]
        requests = [request(float(number), 1000, *prompts[number % 50]) for number in range(count)]
        workload = Workload.of(trace_of(*requests))
        scenario = Scenario(policy="affinity", replicas=4, routers=1, cache_blocks=200)
        tracemalloc.start()
        try:
            simulate_run(workload, scenario)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(50)
    # What comes out is a few numbers a request.
    assert peak(450) - peak(150) < 300 * 400
