"""Measures a request log: its bound, and by cause and place what keeps its prompts from sharing more."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from loadgen.ceiling.bound import Bound, BoundMeter
from loadgen.ceiling.prompts import PromptNamer
from loadgen.traces.request_log import LoggedRequest
from router.chain.prompt import PromptError
from router.observe.layout.memory import LayoutMemory
from router.observe.layout.report import LayoutReport
from router.observe.layout.sketch import sketch_of
from router.observe.layout.tally import LayoutTally
from router.observe.layout.units import read_units

DEFAULT_MEMORY_BYTES = 512 * 1024 * 1024
MAX_PROMPTS = 200_000

OnRequest = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class LogMeasure:
    """What a log came to. `unread` prompts have no text that can be compared (token ids, other APIs).

    The layout's tokens and the bound's add up: hits, losses by cause, and new text make all of the prompts.
    """

    bound: Bound
    layout: LayoutReport
    unread: int
    by_bytes: int

    def to_json(self) -> dict[str, Any]:
        """Return both as one JSON object."""
        counts = {"unread_requests": self.unread, "named_by_bytes": self.by_bytes}
        return {**self.bound.to_json(), **counts, "layout": self.layout.to_json()}


def measure_log(
    requests: Iterable[LoggedRequest],
    namer: PromptNamer,
    meter: BoundMeter,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    keep_text: bool = False,
    on_request: OnRequest | None = None,
) -> LogMeasure:
    """Take a log's requests in their order, one at a time.

    Memory is bounded by `memory_bytes` for what prompts are compared with, and by the meter's own limit.
    `keep_text` keeps texts in that memory, for exact positions and to show them.
    """
    memory = LayoutMemory(memory_bytes, MAX_PROMPTS)
    tally = LayoutTally()
    unread = 0
    for count, request in enumerate(requests, 1):
        try:
            units = read_units(request.body)
        except PromptError:
            unread += 1
            continue
        ids, prompt_tokens = namer.name(request, units)
        hit_tokens = meter.add(ids, prompt_tokens)
        sketch = sketch_of(units, memory.part, keep_text)
        found = memory.see(sketch, hit_tokens * sketch.size // prompt_tokens)
        tally.add(found, sketch.size, prompt_tokens, hit_tokens=hit_tokens)
        if on_request is not None:
            on_request(count)
    return LogMeasure(meter.bound(), tally.report(), unread, namer.by_bytes)
