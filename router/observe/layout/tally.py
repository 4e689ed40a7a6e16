"""Adds up what divergences cost, by cause and place, in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass, field

from router.observe.layout.cause import Cause
from router.observe.layout.compare import Divergence
from router.observe.layout.memory import Finding
from router.observe.layout.report import LAST_INDEX, LayoutReport, Row

MAX_ROWS = 512
_MAX_PLACES = 64
_MAX_TEXTS = 3


@dataclass(slots=True)
class _Sum:
    requests: float = 0.0
    lost_tokens: float = 0.0
    at_tokens: float = 0.0
    places: dict[int, float] = field(default_factory=dict)
    texts: list[tuple[str, str]] = field(default_factory=list)


_Key = tuple[int, Cause, str, str, str, int]


class LayoutTally:
    """Sums of findings, in at most MAX_ROWS rows: what is beyond is told by its cause alone."""

    def __init__(self) -> None:
        self._sums: dict[_Key, _Sum] = {}
        self._requests = 0.0
        self._layouts = 0
        self._prompt_tokens = 0.0
        self._hit_tokens = 0.0
        self._lost_tokens = 0.0

    def add(
        self,
        found: Finding,
        size_bytes: int,
        prompt_tokens: int,
        weight: float = 1.0,
        hit_tokens: int | None = None,
    ) -> None:
        """Add one request of `size_bytes`, which are `prompt_tokens`; `weight` is how many it stands for.

        Bytes become tokens by the request's own ratio. `hit_tokens` is given where it is known exactly.
        """
        scale = prompt_tokens / max(1, size_bytes)
        hit = found.hit_bytes * scale if hit_tokens is None else float(hit_tokens)
        self._requests += weight
        self._layouts += found.new
        self._prompt_tokens += prompt_tokens * weight
        self._hit_tokens += hit * weight
        rest = prompt_tokens - hit
        for divergence, lost_bytes in found.lost:
            lost = min(lost_bytes * scale, rest)
            rest -= lost
            self._lost_tokens += lost * weight
            self._sum(found.layout, divergence, lost, divergence.at_bytes * scale, weight)

    def report(self) -> LayoutReport:
        """Return the sums, what costs most first."""
        rows = [self._row(key, one) for key, one in self._sums.items()]
        rows.sort(key=lambda row: (row.accepted, -row.lost_tokens, row.layout, row.cause))
        return LayoutReport(
            self._requests,
            self._layouts,
            self._prompt_tokens,
            self._hit_tokens,
            self._lost_tokens,
            tuple(rows),
        )

    def _sum(self, layout: int, divergence: Divergence, lost: float, at_tokens: float, weight: float) -> None:
        index = divergence.index if divergence.index <= LAST_INDEX else LAST_INDEX + 1
        key = (layout, divergence.cause, divergence.detail, divergence.kind, divergence.role, index)
        one = self._sums.get(key)
        if one is None:
            if len(self._sums) >= MAX_ROWS:
                key = (-1, divergence.cause, "", divergence.kind, "", LAST_INDEX + 1)
            one = self._sums.setdefault(key, _Sum())
        one.requests += weight
        one.lost_tokens += lost * weight
        one.at_tokens += at_tokens * weight
        place = divergence.character
        if place in one.places or len(one.places) < _MAX_PLACES:
            one.places[place] = one.places.get(place, 0.0) + weight
        if divergence.text is not None and len(one.texts) < _MAX_TEXTS:
            one.texts.append(divergence.text)

    def _row(self, key: _Key, one: _Sum) -> Row:
        layout, cause, detail, kind, role, index = key
        character, count = max(one.places.items(), key=lambda place: (place[1], -place[0]))
        return Row(
            layout=layout,
            cause=cause,
            detail=detail,
            kind=kind,
            role=role,
            index=None if index > LAST_INDEX else index,
            character=character,
            character_ratio=count / one.requests,
            at_tokens=one.at_tokens / one.requests,
            requests=one.requests,
            lost_tokens=one.lost_tokens,
            lost_ratio=one.lost_tokens / max(1.0, self._prompt_tokens),
            texts=tuple(one.texts),
        )
