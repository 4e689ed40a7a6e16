"""Gauges of a fleet: a digest that is gone goes on ageing, and of an old name nothing stays for ever."""

from __future__ import annotations

import pytest

from router.chain.digest import Digest
from router.config import FleetOptions
from router.engines.engine import EngineFacts
from router.fleet.board import Board
from router.fleet.calibration import Calibration
from router.fleet.gauges import Gauges
from router.fleet.members import Member
from router.fleet.naming import settle_names
from router.fleet.replica import Replica
from router.observe.metrics import RouterMetrics


def _replica() -> Replica:
    return Replica(Member("http://127.0.0.1:9", "r"), 2, Board(), Calibration(FleetOptions().calibration))


def _digest_age(metrics: RouterMetrics, replica: str) -> float | None:
    return metrics.registry.get_sample_value("kvring_replica_digest_age_seconds", {"replica": replica})


def _digest(epoch: str) -> Digest:
    return Digest.of([bytes(16)], "identity", epoch)


def test_a_digest_that_is_forgotten_goes_on_ageing() -> None:
    metrics, replica = RouterMetrics(), _replica()
    gauges = Gauges(metrics, ())
    replica.take_facts(EngineFacts("vllm", process="1"))
    gauges.observe([replica], (), 100)
    # One that never had a digest may have none to give.
    assert _digest_age(metrics, "r") is None
    replica.take_digest(_digest("1"), 100)
    gauges.observe([replica], (), 101)
    assert _digest_age(metrics, "r") == 1
    replica.take_facts(EngineFacts("vllm", process="2"))
    assert replica.digest is None
    gauges.observe([replica], (), 500)
    assert _digest_age(metrics, "r") == 400
    replica.take_digest(_digest("2"), 510)
    gauges.observe([replica], (), 512)
    assert _digest_age(metrics, "r") == 2
    # Another replica of its name begins with nothing.
    gauges.left("r", 520)
    gauges.observe([_replica()], (), 530)
    assert _digest_age(metrics, "r") is None


@pytest.mark.parametrize("taken", [True, False])
def test_counters_of_an_old_name_go_unless_another_bears_it(taken: bool) -> None:
    metrics, replica, other = RouterMetrics(), _replica(), _replica()
    gauges = Gauges(metrics, ())
    now = 0.0
    for wanted in ("old", "new"):
        replica.told(Member(replica.url, wanted))
        settle_names([replica], lambda name: gauges.left(name, now))
        gauges.observe([replica], (), now)
        metrics.failovers.labels(wanted, "silent").inc()
    other.name = "old"
    members = [replica, other] if taken else [replica]
    for now in (10.0, 1000.0):
        gauges.observe(members, (), now)
    left = {
        name: metrics.registry.get_sample_value(
            "kvring_failovers_total", {"replica": name, "reason": "silent"}
        )
        for name in ("old", "new")
    }
    assert left == {"old": 1.0 if taken else None, "new": 1.0}
