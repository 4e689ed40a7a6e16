"""The ledger: outcomes are booked once, by replica, model and turn; nothing a client sends adds series."""

from __future__ import annotations

import random
import string

import pytest

from router.observe.labels import OTHER, ModelLabels, turn_label
from router.observe.ledger import Ledger
from router.observe.metrics import RouterMetrics
from router.observe.outcome import Outcome


def outcome(**fields: object) -> Outcome:
    made = Outcome(request_id="id", path="/v1/chat/completions", arrived_at=0.0)
    served = {"model": "m", "turn": 1, "replica": "r", "status": 200, "prompt_tokens": 100, "hit_tokens": 64}
    for name, value in {**served, **fields}.items():
        setattr(made, name, value)
    return made


def value(metrics: RouterMetrics, name: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(f"kvring_{name}", labels) or 0.0


def series(metrics: RouterMetrics) -> set[str]:
    lines = metrics.render().decode().splitlines()
    return {line.rsplit(" ", 1)[0] for line in lines if not line.startswith("#")}


@pytest.mark.parametrize(
    ("turn", "label"),
    [(0, ""), (1, "1"), (2, "2"), (3, "3"), (4, "4-7"), (7, "4-7"), (8, "8+"), (10_000, "8+")],
)
def test_a_turn_has_one_of_five_labels(turn: int, label: str) -> None:
    assert turn_label(turn) == label


def test_hits_of_turns_add_up_to_those_of_replicas_where_they_were_told() -> None:
    metrics = RouterMetrics()
    ledger = Ledger(metrics, log=False)
    for turn, hit in ((1, 0), (2, 64), (5, 96), (6, 90), (0, 10)):
        ledger.enter(outcome(turn=turn, hit_tokens=hit))
    ledger.enter(outcome(turn=2, hit_tokens=None))
    assert value(metrics, "turn_hit_tokens_total", model="m", turn="4-7") == 186
    assert value(metrics, "turn_prompt_tokens_total", model="m", turn="2") == 100
    turns = sum(value(metrics, "turn_hit_tokens_total", model="m", turn=label) for label in ("1", "2", "4-7"))
    assert value(metrics, "hit_tokens_total", replica="r") == turns + 10
    assert value(metrics, "hit_unreported_total", replica="r") == 1


def test_only_streams_tell_when_a_turn_began_and_what_a_token_took() -> None:
    metrics = RouterMetrics()
    ledger = Ledger(metrics, log=False)
    told = {"first_byte_seconds": 0.2, "total_seconds": 1.2, "output_tokens": 11}
    ledger.enter(outcome(streamed=False, **told))
    assert value(metrics, "turn_time_to_first_byte_seconds_count", model="m", turn="1") == 0
    assert value(metrics, "time_per_output_token_seconds_count", model="m") == 0
    ledger.enter(outcome(streamed=True, **told))
    assert value(metrics, "turn_time_to_first_byte_seconds_sum", model="m", turn="1") == 0.2
    assert value(metrics, "time_per_output_token_seconds_sum", model="m") == pytest.approx(0.1)
    assert value(metrics, "output_tokens_total", model="m") == 22
    assert value(metrics, "request_seconds_count", model="m") == 2


def test_what_was_not_served_counts_as_a_request_alone() -> None:
    metrics = RouterMetrics()
    ledger = Ledger(metrics, log=False)
    ledger.enter(outcome(result="broken_off", streamed=True, first_byte_seconds=0.1, output_tokens=5))
    assert value(metrics, "model_requests_total", model="m", outcome="broken_off") == 1
    assert value(metrics, "output_tokens_total", model="m") == 0
    assert value(metrics, "turn_prompt_tokens_total", model="m", turn="1") == 0


def test_models_that_nobody_serves_are_one_series() -> None:
    metrics = RouterMetrics()
    ledger = Ledger(metrics, log=False)
    ledger.enter(outcome())
    refused = {"replica": "", "result": "refused", "status": 404, "hit_tokens": None}
    ledger.enter(outcome(model="nobody", **refused))
    before = series(metrics)
    rng = random.Random(1)
    for _ in range(10_000):
        name = "".join(rng.choices(string.printable, k=rng.randrange(1, 300)))
        ledger.enter(outcome(model=name, turn=rng.randrange(20), **refused))
    assert series(metrics) == before
    assert value(metrics, "model_requests_total", model=OTHER, outcome="refused") == 10_001


def test_even_models_that_are_served_are_bounded() -> None:
    labels = ModelLabels(most=2)
    assert [labels.of(name, True) for name in ("a", "b", "c", "a")] == ["a", "b", OTHER, "a"]
    assert ModelLabels().of("x" * 1000, True) == OTHER
    # Once served, a model keeps its label when it is out of reach for a while.
    assert labels.of("a", False) == "a"


def test_the_options_of_a_new_run_replace_those_of_the_last() -> None:
    metrics = RouterMetrics()
    metrics.introduce("1.0", "affinity", "a", "0001")
    metrics.introduce("1.0", "round_robin", "b", "0002")
    lines = [line for line in series(metrics) if line.startswith("kvring_info")]
    assert lines == ['kvring_info{config="0002",policy="round_robin",run="b",version="1.0"}']


def test_reloads_are_counted_and_a_refused_one_shows_until_one_is_taken() -> None:
    metrics = RouterMetrics()
    assert value(metrics, "config_current") == 1
    metrics.reloaded(False)
    assert value(metrics, "config_current") == 0
    metrics.reloaded(True)
    assert value(metrics, "config_current") == 1
    assert value(metrics, "config_reloads_total", result="refused") == 1
    assert value(metrics, "config_reloads_total", result="taken") == 1


def test_a_replica_that_left_leaves_no_series() -> None:
    metrics = RouterMetrics()
    before = series(metrics)
    for gauge in (metrics.replica_kv_usage, metrics.replica_running, metrics.replica_waiting):
        gauge.labels("gone").set(1)
    Ledger(metrics, log=False).enter(outcome(replica="gone", turn=0, model=""))
    metrics.forget_gauges("gone")
    metrics.forget_counters("gone")
    assert not [line for line in series(metrics) - before if "gone" in line]


def test_a_replica_that_comes_back_after_long_counts_from_zero() -> None:
    metrics = RouterMetrics()
    ledger = Ledger(metrics, log=False)
    ledger.enter(outcome())
    metrics.forget_counters("r")
    ledger.enter(outcome())
    assert value(metrics, "prompt_tokens_total", replica="r") == 100
    assert value(metrics, "time_to_first_byte_seconds_count", replica="r") == 0


def test_no_series_tells_when_it_began() -> None:
    metrics = RouterMetrics()
    Ledger(metrics, log=False).enter(outcome())
    assert not [line for line in series(metrics) if "_created" in line]
