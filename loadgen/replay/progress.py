"""Shows how far a replay is, with the hit ratio so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

from loadgen.drive import Turn
from loadgen.progress import turn_progress
from loadgen.replay.drive import Replayed
from loadgen.traces.trace import Trace


@contextmanager
def replay_progress(trace: Trace, console: Console) -> Iterator[Callable[[Replayed], None]]:
    """Give a callback for `drive` that counts the answers of the trace's requests."""
    with turn_progress(trace.name, len(trace.requests), console) as on_turn:
        yield lambda replayed: on_turn(Turn(str(replayed.number), 0, replayed.sent_seconds, replayed.answer))
