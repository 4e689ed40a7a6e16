"""One summary of a run: what was computed, what the cache spared, how long users waited, what failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any

from loadgen.drive import Run, Turn


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of one run. None where nothing was measured.

    Tokens are summed over whole answers that report both prompt and cached tokens; the others are counted in
    `answers_without_usage`. Latencies are of whole answers only; percentiles are values that were measured.
    `kept_replica_ratio` is of the turns after a session's first whose replica, and the one before, are known.
    """

    requests: int
    answers: int
    answers_without_usage: int
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    token_hit_ratio: float | None
    ttft_p50_seconds: float | None
    ttft_p90_seconds: float | None
    ttft_p99_seconds: float | None
    inter_token_p50_seconds: float | None
    inter_token_p99_seconds: float | None
    answer_tokens: int
    answer_tokens_per_second: float
    wall_seconds: float
    requests_by_replica: dict[str, int]
    busiest_replica_ratio: float | None
    kept_replica_ratio: float | None
    sessions_turned_away: int
    errors: int
    errors_by_kind: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        """Return the figures under the same names."""
        return asdict(self)


def summarise(run: Run) -> Summary:
    """Sum up a run."""
    whole = [turn.answer for turn in run.turns if turn.answer.error is None]
    tokens = [
        (answer.prompt_tokens, answer.cached_tokens)
        for answer in whole
        if answer.prompt_tokens is not None and answer.cached_tokens is not None
    ]
    prompt = sum(pair[0] for pair in tokens)
    cached = sum(pair[1] for pair in tokens)
    ttft = [answer.first_token_seconds for answer in whole if answer.first_token_seconds is not None]
    gaps = [gap for answer in whole for gap in answer.gaps_seconds]
    spoken = sum(answer.answer_tokens or 0 for answer in whole)
    replicas = Counter(turn.answer.replica for turn in run.turns if turn.answer.replica is not None)
    errors = Counter(turn.answer.error for turn in run.turns if turn.answer.error is not None)
    return Summary(
        requests=len(run.turns),
        answers=len(whole),
        answers_without_usage=len(whole) - len(tokens),
        prompt_tokens=prompt,
        cached_tokens=cached,
        computed_tokens=prompt - cached,
        token_hit_ratio=cached / prompt if prompt else None,
        ttft_p50_seconds=percentile(ttft, 50),
        ttft_p90_seconds=percentile(ttft, 90),
        ttft_p99_seconds=percentile(ttft, 99),
        inter_token_p50_seconds=percentile(gaps, 50),
        inter_token_p99_seconds=percentile(gaps, 99),
        answer_tokens=spoken,
        answer_tokens_per_second=spoken / run.wall_seconds if run.wall_seconds > 0 else 0.0,
        wall_seconds=run.wall_seconds,
        requests_by_replica=dict(sorted(replicas.items())),
        busiest_replica_ratio=max(replicas.values()) / replicas.total() if replicas else None,
        kept_replica_ratio=_kept(run.turns),
        sessions_turned_away=run.turned_away,
        errors=errors.total(),
        errors_by_kind=dict(sorted(errors.items())),
    )


def percentile(values: Sequence[float], percent: int) -> float | None:
    """The least value that at least `percent` of 100 values do not exceed; None of none."""
    if not values:
        return None
    return sorted(values)[max(1, ceil(len(values) * percent / 100)) - 1]


def _kept(turns: Iterable[Turn]) -> float | None:
    """The share of turns that met the replica of the turn before."""
    places = {(turn.session, turn.index): turn.answer.replica for turn in turns}
    kept = 0
    followed = 0
    for (session, index), replica in places.items():
        before = places.get((session, index - 1))
        if before is not None and replica is not None:
            followed += 1
            kept += before == replica
    return kept / followed if followed else None
