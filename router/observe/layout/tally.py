"""Adds up what divergences cost, by cause and place, and says it as a report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from router.observe.layout.cause import ACCEPTED, RULES, WORDS, Cause
from router.observe.layout.compare import Divergence
from router.observe.layout.memory import Finding

MAX_ROWS = 512
_MAX_PLACES = 64
_MAX_TEXTS = 3
# Messages behind this one are told together: in a conversation that grows, a place moves with its turns.
_LAST_INDEX = 8


@dataclass(frozen=True, slots=True)
class Row:
    """One cause at one place of one family of prompts.

    `index` is the message's or tool's (None: one further on), `character` the commonest place in its text,
    with the share of the requests that part just there; `at_tokens` is the mean of the tokens before it.
    `texts` holds what stood there, before and now, only where texts are kept.
    """

    layout: int
    cause: Cause
    detail: str
    kind: str
    role: str
    index: int | None
    character: int
    character_ratio: float
    at_tokens: float
    requests: float
    lost_tokens: float
    lost_ratio: float
    texts: tuple[tuple[str, str], ...] = ()

    @property
    def accepted(self) -> bool:
        """Whether a good layout has this too: a clean break now and then, or another model."""
        return self.cause in ACCEPTED or (self.cause is Cause.KEYS and "model" in self.detail.split(", "))

    @property
    def where(self) -> str:
        """The place, as a path into the body."""
        if self.kind == "keys":
            return self.detail
        index = f"{_LAST_INDEX + 1}+" if self.index is None else str(self.index)
        return f"{self.kind}[{index}]"

    def to_json(self) -> dict[str, Any]:
        """Return the row as JSON; without any text of a prompt but where texts were kept."""
        value: dict[str, Any] = {
            "layout": self.layout,
            "cause": self.cause.value,
            "what": WORDS[self.cause],
            "where": self.where,
            "role": self.role or None,
            "index": self.index,
            "character": self.character,
            "character_ratio": round(self.character_ratio, 4),
            "at_tokens": round(self.at_tokens, 1),
            "requests": round(self.requests, 1),
            "lost_tokens": round(self.lost_tokens),
            "lost_tokens_per_request": round(self.lost_tokens / self.requests, 1) if self.requests else 0.0,
            "lost_ratio": round(self.lost_ratio, 6),
            "accepted": self.accepted,
            "rule": RULES[self.cause],
        }
        if self.texts:
            value["texts"] = [{"before": before, "now": now} for before, now in self.texts]
        return value


@dataclass(frozen=True, slots=True)
class LayoutReport:
    """All of a log, or of the traffic that was sampled.

    Of the prompt tokens, `hit_tokens` a cache without limit would hold, `lost_tokens` a better layout
    would have let it hold, and the rest is new text.
    """

    requests: float
    new_layouts: int
    prompt_tokens: float
    hit_tokens: float
    lost_tokens: float
    rows: tuple[Row, ...]

    @property
    def fresh_tokens(self) -> float:
        """Tokens that no cache could hold, whatever the layout."""
        return max(0.0, self.prompt_tokens - self.hit_tokens - self.lost_tokens)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return {
            "requests": round(self.requests, 1),
            "layouts": self.new_layouts,
            "prompt_tokens": round(self.prompt_tokens),
            "hit_tokens": round(self.hit_tokens),
            "lost_tokens": round(self.lost_tokens),
            "new_tokens": round(self.fresh_tokens),
            "findings": [row.to_json() for row in self.rows],
        }


@dataclass(slots=True)
class _Sum:
    divergence: Divergence
    layout: int
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
        index = divergence.index if divergence.index <= _LAST_INDEX else _LAST_INDEX + 1
        key = (layout, divergence.cause, divergence.detail, divergence.kind, divergence.role, index)
        one = self._sums.get(key)
        if one is None:
            if len(self._sums) >= MAX_ROWS:
                key = (-1, divergence.cause, "", divergence.kind, "", _LAST_INDEX + 1)
            one = self._sums.setdefault(key, _Sum(divergence, layout))
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
            index=None if index > _LAST_INDEX else index,
            character=character,
            character_ratio=count / one.requests,
            at_tokens=one.at_tokens / one.requests,
            requests=one.requests,
            lost_tokens=one.lost_tokens,
            lost_ratio=one.lost_tokens / max(1.0, self._prompt_tokens),
            texts=tuple(one.texts),
        )
