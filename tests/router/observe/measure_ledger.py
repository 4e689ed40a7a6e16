"""What it costs to note a request, in counters and in the access log: CPU microseconds, printed.

    python -m tests.router.observe.measure_ledger

A served chat with a turn, streamed and with three causes of misses, on four replicas. Best of forty, all
threads of this process counted, into a pipe that another process reads. For comparison the same lines go
through `logging` into the same pipe, and as many counts to prometheus_client.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from time import process_time
from typing import TextIO, cast

import prometheus_client

from router.observe.attribution import Misses
from router.observe.ledger import Ledger
from router.observe.log_format import formatter
from router.observe.log_lines import LineHandler
from router.observe.metrics import RouterMetrics
from router.observe.outcome import Outcome

REQUESTS = 2_000
_TIMES = 40


def outcomes(streamed: bool) -> list[Outcome]:
    """Return what some requests came to."""
    return [
        Outcome(
            request_id=f"{number:032x}",
            path="/v1/chat/completions",
            arrived_at=0.0,
            model="smollm2-135m-instruct",
            turn=number % 9 + 1,
            tier="bytes",
            replica=f"replica-{number % 4}",
            reason="affinity",
            status=200,
            attempts=1,
            prompt_tokens=1000 + number,
            expected_tokens=960,
            hit_tokens=896,
            output_tokens=64,
            misses=Misses(partial_block=4, stale_digest=64, cold=36 + number),
            streamed=streamed,
            first_byte_seconds=0.0521,
            total_seconds=1.3,
        )
        for number in range(REQUESTS)
    ]


def microseconds(enter: Callable[[Outcome], None], told: list[Outcome], end: Callable[[], None]) -> float:
    """Return what one of them costs."""
    best = float("inf")
    for _ in range(_TIMES):
        begun = process_time()
        for outcome in told:
            enter(outcome)
        end()
        best = min(best, process_time() - begun)
    return best / len(told) * 1e6


def with_prometheus_client() -> Callable[[Outcome], None]:
    """Return what counts as often in its families, with series that are looked up beforehand."""
    registry = prometheus_client.CollectorRegistry()
    counter = prometheus_client.Counter("counts", "Counts.", ("label",), registry=registry).labels("a")
    histogram = prometheus_client.Histogram("values", "Values.", ("label",), registry=registry).labels("a")

    def enter(outcome: Outcome) -> None:
        for _ in range(12):
            counter.inc()
        for _ in range(4 if outcome.streamed else 2):
            histogram.observe(outcome.total_seconds)

    return enter


def main() -> None:
    """Print the figures."""
    reader = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert reader.stdin is not None
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    for streamed in (True, False):
        _print_all(root, cast(TextIO, reader.stdin), outcomes(streamed), "streamed" if streamed else "whole")
    reader.stdin.close()
    reader.wait()


def _print_all(root: logging.Logger, pipe: TextIO, told: list[Outcome], kind: str) -> None:
    rows = {
        "counters": microseconds(Ledger(RouterMetrics(), log=False).enter, told, _nothing),
        "  as many of prometheus_client": microseconds(with_prometheus_client(), told, _nothing),
    }
    for form in ("text", "json"):
        lines, plain = LineHandler(pipe, most_characters=1 << 30), logging.StreamHandler(pipe)
        for handler, name in ((lines, f"counters and {form} line"), (plain, "  line through logging")):
            handler.setFormatter(formatter(form))
            root.handlers[:] = [handler]
            rows[name if handler is lines else f"{name}, {form}"] = microseconds(
                Ledger(RouterMetrics(), log=True).enter, told, handler.flush
            )
    for name, cost in rows.items():
        sys.stdout.write(f"{kind:10}{name:36}{cost:8.2f} us a request\n")


def _nothing() -> None:
    pass


if __name__ == "__main__":
    main()
