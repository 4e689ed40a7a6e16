"""The load report: what is queued, with the hits it will have, and what a prefill really takes."""

from __future__ import annotations

import pytest

from replica.load import PrefillMeter, PrefillShape, WorkLoad
from router.wire.report import PrefillCost
from tests.replica.drives import Drive

COST = PrefillCost(0.01, 1e-3, 1e-6)


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def names(count: int, family: int = 0) -> list[bytes]:
    return [bytes((family, depth)) for depth in range(count)]


@pytest.mark.parametrize(("length", "done"), [(1, 0), (100, 0), (100, 64), (100, 99), (5000, 4096)])
def test_a_shape_costs_what_s_says(length: int, done: int) -> None:
    assert PrefillShape.of(length, done).seconds(COST) == pytest.approx(COST.seconds(length, done))


def test_chunks_cost_what_the_whole_costs() -> None:
    whole = PrefillShape.of(1000, 128)
    parts = PrefillShape.of(400, 128, end=False) + PrefillShape.of(1000, 400)
    assert parts == whole


def test_the_queue_counts_resident_hits_and_those_to_come() -> None:
    load = WorkLoad(PrefillMeter(COST))
    load.enqueue(1, 100, names(6), resident=2, block_tokens=16)
    assert load.seconds() == pytest.approx(COST.seconds(100, 32))
    # Shares four blocks with the one ahead, then parts.
    load.enqueue(2, 200, names(4) + names(8, family=1), resident=2, block_tokens=16)
    assert load.seconds() == pytest.approx(COST.seconds(100, 32) + COST.seconds(200, 64))
    # A prompt of whole blocks still computes its last one.
    load.enqueue(3, 96, names(6), resident=0, block_tokens=16)
    assert load.seconds() == pytest.approx(
        COST.seconds(100, 32) + COST.seconds(200, 64) + COST.seconds(96, 80)
    )
    for id in (2, 1, 3, 3):
        load.leave(id)
    assert load.seconds() == 0
    load.enqueue(4, 100, names(6), resident=0, block_tokens=16)
    assert load.seconds() == pytest.approx(COST.seconds(100, 0))


def test_a_running_step_wears_its_own_work_down_and_no_more() -> None:
    clock = Clock()
    load = WorkLoad(PrefillMeter(COST), clock)
    load.enqueue(1, 1000, [], 0, 16)
    load.enqueue(2, 500, [], 0, 16)
    step = PrefillShape.of(400, 0, end=False)
    load.begin_step(step, 0)
    before = load.seconds()
    clock.now = 0.1
    assert load.seconds() == pytest.approx(before - 0.1)
    clock.now = 50.0
    assert load.seconds() == pytest.approx(before - step.seconds(COST))
    load.left(1, 1000, 400)
    load.end_step(learn=False)
    assert load.seconds() == pytest.approx(before - step.seconds(COST))


def test_chunk_by_chunk_work_falls_to_nothing() -> None:
    drive = Drive(max_batch_tokens=8)
    drive.add(list(range(40)), max_tokens=1)
    seen = [drive.load.seconds()]
    while drive.step():
        seen.append(drive.load.seconds())
    assert seen == sorted(seen, reverse=True)
    assert seen[-1] == 0


def train(meter: PrefillMeter, true: PrefillCost, rounds: int = 30, slow_every: int = 0) -> None:
    for round in range(rounds):
        for length, done in ((64, 32), (600, 0), (2000, 1900), (4000, 3000)):
            shape = PrefillShape.of(length, done)
            held_up = 30 if slow_every and round % slow_every == 0 else 1
            meter.learn(shape, 0, shape.seconds(true) * held_up)


@pytest.mark.parametrize(
    "true", [PrefillCost(0.05, 7e-4, 2e-8), PrefillCost(1e-4, 1e-5, 1e-10), PrefillCost(0.2, 1e-4, 0.0)]
)
def test_the_meter_follows_what_steps_take(true: PrefillCost) -> None:
    meter = PrefillMeter(PrefillCost())
    train(meter, true, rounds=200)
    for length, done in ((100, 0), (1000, 500), (4000, 0)):
        assert 0.6 < meter.cost.seconds(length, done) / true.seconds(length, done) < 1.67


def test_the_meter_shrugs_off_steps_that_were_held_up() -> None:
    true = PrefillCost(0.05, 7e-4, 2e-8)
    meter = PrefillMeter(true)
    train(meter, true, slow_every=10)
    assert 0.8 < meter.cost.seconds(1000, 0) / true.seconds(1000, 0) < 1.5


def test_the_meter_sets_decoding_aside() -> None:
    true = PrefillCost(0.01, 1e-4, 0.0)
    meter = PrefillMeter(true)
    for _ in range(40):
        meter.learn(PrefillShape(), 10, 0.02)
        shape = PrefillShape.of(1000, 0)
        meter.learn(shape, 10, shape.seconds(true) + 0.02)
    assert meter.cost.seconds(1000, 0) == pytest.approx(true.seconds(1000, 0), rel=0.05)


def test_the_meter_stays_within_bounds_and_ignores_nonsense() -> None:
    meter = PrefillMeter(PrefillCost())
    for seconds in (0.0, -1.0, 1e9, 1e9, 1e9, 1e-9, 1e-9):
        for _ in range(300):
            meter.learn(PrefillShape.of(100, 0), 0, seconds)
    cost = meter.cost
    assert PrefillCost().per_token_seconds / 1001 < cost.per_token_seconds
    assert cost.per_token_seconds < PrefillCost().per_token_seconds * 1001
