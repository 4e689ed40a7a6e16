"""The demo's verdict: what the second policy must show, figure by figure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from loadgen.client import Answer
from loadgen.demo import DemoPlan, effect, shortfalls
from loadgen.drive import Run, Turn
from loadgen.report import Summary, summarise


def run(cached: int, ttft: float) -> Summary:
    turns = [
        Turn(
            f"chat-{index}",
            0,
            0.0,
            Answer(
                replica=f"replica-{index % 3}",
                prompt_tokens=100,
                cached_tokens=cached,
                answer_tokens=1,
                first_token_seconds=ttft,
            ),
        )
        for index in range(9)
    ]
    return summarise(Run(tuple(turns), 1.0))


BEFORE = run(cached=20, ttft=0.8)
AFTER = run(cached=60, ttft=0.4)


def test_all_shown() -> None:
    assert shortfalls(BEFORE, AFTER) == []
    assert effect(BEFORE, AFTER) == (
        "affinity against round_robin: computed prompt tokens x 0.50, TTFT p50 x 0.50, TTFT p99 x 0.50"
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"errors": 1, "errors_by_kind": {"timeout": 1}}, "timeout 1"),
        ({"computed_tokens": 361}, "more than half"),
        ({"ttft_p50_seconds": 0.8}, "TTFT p50 is not lower: 0.80 s against 0.80 s"),
        ({"ttft_p99_seconds": 0.9}, "TTFT p99 is not lower"),
        ({"ttft_p99_seconds": None}, "unknown"),
        ({"busiest_replica_ratio": 0.46}, "46.0%"),
        ({"busiest_replica_ratio": None}, "unknown share"),
    ],
)
def test_each_shortfall_is_told(change: dict[str, Any], said: str) -> None:
    (missed,) = shortfalls(BEFORE, replace(AFTER, **change))
    assert said in missed


def test_runs_without_answers_show_nothing() -> None:
    empty = summarise(Run((), 0.0))
    assert len(shortfalls(empty, empty)) == 4
    assert effect(empty, empty)


def test_users_and_replicas_do_not_keep_step() -> None:
    assert DemoPlan().concurrency % 3 != 0
