"""The report on layouts: what they cost by cause and place, as values and as JSON and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from router.observe.layout.cause import ACCEPTED, RULES, WORDS, Cause

# Places behind this one are told together: in a conversation that grows, a place moves with its turns.
LAST_INDEX = 8


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
        index = f"{LAST_INDEX + 1}+" if self.index is None else str(self.index)
        return f"{self.kind}[{index}]"

    def to_json(self) -> dict[str, Any]:
        """Return the row as JSON; without any text of a prompt but where texts were kept."""
        value: dict[str, Any] = {
            "layout": self.layout,
            "cause": self.cause.value,
            "what": WORDS[self.cause],
            "detail": self.detail,
            "where": self.where,
            "kind": self.kind,
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

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Row:
        """Read back what `to_json` returned, rounded as it is; KeyError, TypeError or ValueError if unfit."""
        index = value["index"]
        return cls(
            layout=int(value["layout"]),
            cause=Cause(value["cause"]),
            detail=str(value["detail"]),
            kind=str(value["kind"]),
            role=str(value["role"] or ""),
            index=None if index is None else int(index),
            character=int(value["character"]),
            character_ratio=float(value["character_ratio"]),
            at_tokens=float(value["at_tokens"]),
            requests=float(value["requests"]),
            lost_tokens=float(value["lost_tokens"]),
            lost_ratio=float(value["lost_ratio"]),
            texts=tuple((str(text["before"]), str(text["now"])) for text in value.get("texts", ())),
        )


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

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> LayoutReport:
        """Read back what `to_json` returned, rounded as it is; KeyError, TypeError or ValueError if unfit."""
        return cls(
            requests=float(value["requests"]),
            new_layouts=int(value["layouts"]),
            prompt_tokens=float(value["prompt_tokens"]),
            hit_tokens=float(value["hit_tokens"]),
            lost_tokens=float(value["lost_tokens"]),
            rows=tuple(map(Row.from_json, value["findings"])),
        )
