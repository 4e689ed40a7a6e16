"""What is measured: requests of three sizes, paced events, and delays at three concurrencies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from loadgen.bench.relay.exchange import Kind
from router.settings import Options

_KIBIBYTE = 1024


class RelayOptions(Options):
    """How long is measured, and how often."""

    passes: int = Field(
        2, ge=1, le=100, description="Over all cells, each router in turn; the least of them is told."
    )
    seconds: float = Field(
        3.0, ge=0.1, le=600, description="Measured in each cell of a pass: some thousand requests."
    )


@dataclass(frozen=True, slots=True)
class Cell:
    """One thing that is measured: the cost of a request or an event, or what a router adds to the delay."""

    name: str
    what: Literal["cost", "delay"]
    kind: Kind
    body_bytes: int
    concurrency: int

    @property
    def per_event(self) -> bool:
        """Whether the cost is counted by event."""
        return self.kind == "sse"


COSTS = (
    Cell("200 B", "cost", "json", 200, 16),
    Cell("16 KB", "cost", "json", 16 * _KIBIBYTE, 16),
    Cell("131 KB", "cost", "json", 128 * _KIBIBYTE, 16),
    Cell("event", "cost", "sse", 200, 64),
)
DELAYS = tuple(Cell(f"c{clients}", "delay", "held", 16 * _KIBIBYTE, clients) for clients in (1, 16, 64))
# One delay, and less than a second a cell: two routers in half a minute.
QUICK = (*COSTS, DELAYS[1])
QUICK_SECONDS = 0.8
