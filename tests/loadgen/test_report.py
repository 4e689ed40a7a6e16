"""The report's figures, against sums done by hand."""

from __future__ import annotations

from io import StringIO

import orjson
import pytest
from rich.console import Console

from loadgen.client import Answer
from loadgen.drive import Run, Turn
from loadgen.report import percentile, summarise
from loadgen.table import comparison


def turn(session: str, index: int, answer: Answer) -> Turn:
    return Turn(session, index, 0.0, answer)


def answer(replica: str, prompt: int, cached: int | None, ttft: float, *gaps: float) -> Answer:
    return Answer(
        replica=replica,
        prompt_tokens=prompt,
        cached_tokens=cached,
        answer_tokens=len(gaps) + 1,
        first_token_seconds=ttft,
        gaps_seconds=gaps,
        total_seconds=ttft + sum(gaps),
    )


RUN = Run(
    turns=(
        turn("a", 0, answer("r0", 100, 0, 0.4, 0.1, 0.3)),
        turn("b", 0, answer("r1", 100, 60, 0.2, 0.2)),
        turn("a", 1, answer("r0", 200, 90, 0.1)),
        turn("b", 1, answer("r0", 400, None, 0.3)),
        turn("a", 2, answer("r0", 300, 150, 0.5)),
        turn("b", 2, Answer(replica="r0", error="in_band", first_token_seconds=9.0, prompt_tokens=7)),
        turn("c", 0, Answer(error="connect")),
        turn("d", 0, Answer(error="connect")),
    ),
    wall_seconds=4.0,
    turned_away=3,
)


def test_figures() -> None:
    summary = summarise(RUN)
    assert (summary.requests, summary.answers, summary.answers_without_usage) == (8, 5, 1)
    assert (summary.prompt_tokens, summary.cached_tokens, summary.computed_tokens) == (700, 300, 400)
    assert summary.token_hit_ratio == pytest.approx(300 / 700)
    assert (summary.ttft_p50_seconds, summary.ttft_p90_seconds, summary.ttft_p99_seconds) == (0.3, 0.5, 0.5)
    assert (summary.inter_token_p50_seconds, summary.inter_token_p99_seconds) == (0.2, 0.3)
    assert (summary.answer_tokens, summary.answer_tokens_per_second) == (8, 2.0)
    assert summary.requests_by_replica == {"r0": 5, "r1": 1}
    assert summary.busiest_replica_ratio == pytest.approx(5 / 6)
    # Of a1, a2, b1 and b2, all but b1 met the replica of the turn before.
    assert summary.kept_replica_ratio == pytest.approx(3 / 4)
    assert (summary.errors, summary.errors_by_kind) == (3, {"connect": 2, "in_band": 1})
    assert summary.sessions_turned_away == 3


def test_an_empty_run_has_no_ratios() -> None:
    summary = summarise(Run((), 0.0))
    assert summary.token_hit_ratio is None
    assert summary.ttft_p50_seconds is None
    assert summary.busiest_replica_ratio is None
    assert summary.kept_replica_ratio is None
    assert summary.answer_tokens_per_second == 0


@pytest.mark.parametrize(
    ("count", "percent", "expected"),
    [(1, 50, 1), (2, 50, 1), (3, 50, 2), (10, 90, 9), (100, 99, 99), (101, 99, 100), (10, 99, 10), (5, 0, 1)],
)
def test_percentiles_are_nearest_ranks(count: int, percent: int, expected: int) -> None:
    assert percentile([float(value) for value in range(count, 0, -1)], percent) == expected


def test_json_has_the_same_fields() -> None:
    summary = summarise(RUN)
    assert orjson.loads(orjson.dumps(summary.to_json())) == summary.to_json()
    assert summary.to_json()["ttft_p50_seconds"] == 0.3


def test_runs_side_by_side() -> None:
    console = Console(width=100, file=StringIO())
    console.print(comparison({"one": summarise(RUN), "two": summarise(Run((), 0.0))}, "title"))
    assert isinstance(console.file, StringIO)
    text = console.file.getvalue()
    lines = {line.strip("│ ").split("│")[0].strip(): line for line in text.splitlines() if "│" in line}
    assert "42.9%" in lines["token hit ratio"]
    assert "300 ms" in lines["TTFT p50"]
    assert "3 (connect 2, in_band 1)" in lines["errors"]
    assert "3" in lines["sessions turned away"]
    assert "-" in lines["busiest replica's share"]
