"""The fleet view: its columns and its rows say the same."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from router.placement.ring import Ring
from router.placement.view import FleetView, LoadView, ReplicaView
from router.wire.report import PrefillCost
from tests.router.views import ask_for, digest_of, names_of


def rows(count: int, seed: int = 0) -> list[ReplicaView]:
    draw = Random(seed)
    return [
        ReplicaView(
            name,
            f"{name}:{draw.randrange(3)}",
            LoadView(
                work_seconds=draw.random() * 3,
                reported_at=100 - draw.random(),
                own_work_seconds=draw.random(),
                in_flight=draw.randrange(9),
                in_flight_tokens=draw.randrange(9000),
                dispatched=draw.randrange(99),
                running=draw.randrange(9),
                waiting=draw.randrange(9),
                kv_usage=draw.random(),
            ),
            PrefillCost(draw.random(), draw.random() * 1e-3, draw.random() * 1e-8),
        )
        for name in names_of(count)
    ]


def view_of(replicas: list[ReplicaView], members: int = 0) -> FleetView:
    return FleetView.of(replicas, Ring([row.name for row in replicas]), members)


def test_rows_come_back_as_they_were_given() -> None:
    given = rows(7)
    view = view_of(given, members=9)
    assert list(view.replicas) == given
    assert view.names == tuple(row.name for row in given)
    assert view.epochs == tuple(row.epoch for row in given)
    assert view.places == {row.name: place for place, row in enumerate(given)}
    assert (len(view), view.members, view_of(given).members) == (7, 9, 7)
    empty = view_of([])
    assert (len(empty), list(empty.replicas), len(empty.wait_seconds(1.0))) == (0, [], 0)


@pytest.mark.parametrize("now", [100.0, 101.0, 150.0])
def test_columns_wait_and_cost_as_rows_do(now: float) -> None:
    view = view_of(rows(9, seed=1))
    waits = [row.load.wait_seconds(now) for row in view.replicas]
    assert view.waits(now) == view.wait_seconds(now).tolist() == pytest.approx(waits)
    assert min(waits) >= 0
    hits = [700 * place for place in range(9)]
    for length in (1, 100, 5000):
        told = [row.prefill.seconds(length, hit) for row, hit in zip(view.replicas, hits, strict=True)]
        assert view.prefills(length, hits) == view.prefill_seconds(length, np.array(hits)).tolist()
        assert view.prefills(length, hits) == pytest.approx(told)
        alike = [row.prefill.seconds(length, 64) for row in view.replicas]
        assert view.prefill_seconds(length, 64).tolist() == pytest.approx(alike)


def test_asking_changes_nothing() -> None:
    view = view_of(rows(5))
    before = view.table.copy()
    for _ in range(2):
        view.wait_seconds(100.5)
        view.prefill_seconds(1000, view.held_tokens(ask_for([1] * 64)))
        view.waits(100.5, 1.5)
        view.prefills(1000, [0] * 5)
    assert np.array_equal(view.table, before)


def test_ties_go_by_the_key_and_by_stable_names_not_by_place() -> None:
    given = rows(6)
    view, shuffled = view_of(given), view_of(given[::-1])
    first = []
    for number in range(600):
        key = b"key %d" % number
        order = sorted(view.names, key=lambda name: view.tie_break(key, view.places[name]))
        assert sorted(order, key=lambda name: shuffled.tie_break(key, shuffled.places[name])) == order
        first.append(order[0])
    assert all(60 < first.count(name) < 140 for name in view.names)


def test_what_digests_tell_is_known_while_they_are_fresh_and_of_this_life() -> None:
    given = rows(4)
    ask, other = ask_for(range(160)), ask_for(range(500, 660))
    told = {
        given[0].name: (digest_of([ask], given[0].epoch), 50.0),
        given[1].name: (digest_of([other], given[1].epoch), 90.0),
        given[2].name: (digest_of([ask], "an earlier life"), 90.0),
    }
    view = FleetView.of(given, Ring([row.name for row in given]), digests=told)
    assert view.held_tokens(ask).tolist() == [160, 0, -1, -1]
    assert view.held_tokens(other).tolist() == [0, 160, -1, -1]
    assert view.held_tokens(ask_for([*range(80), *range(7)])).tolist() == [80, 0, -1, -1]
    assert view.held_tokens(ask, least_told_at=60.0).tolist() == [-1, 0, -1, -1]
    assert view.held_tokens(replace(ask, chain=None)).tolist() == [-1] * 4
