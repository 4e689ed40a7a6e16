"""The ledger: what happened to each request, summed by replica."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from router.observe.attribution import Misses
from router.observe.metrics import RouterMetrics

access_log = logging.getLogger("kvring.access")


@dataclass(slots=True)
class Outcome:
    """What happened to one request. Tokens are None where nobody told; seconds count from arrival.

    `evicted_tokens` are those that the replica had once, right behind the hit; `block_tokens` its block, 0
    where that is not known; `misses` the uncached tokens of a prompt that was served, by cause.
    """

    request_id: str
    path: str
    arrived_at: float
    model: str = ""
    tier: str = "none"
    replica: str = ""
    reason: str = ""
    status: int = 0
    result: str = "ok"
    attempts: int = 0
    prompt_tokens: int = 0
    expected_tokens: int = 0
    hit_tokens: int | None = None
    evicted_tokens: int | None = None
    block_tokens: int = 0
    misses: Misses | None = None
    streamed: bool = False
    first_byte_seconds: float | None = None
    total_seconds: float = 0.0
    client_retry: str = "0"

    @property
    def served(self) -> bool:
        """Whether a replica answered it in full."""
        return bool(self.replica) and self.result == "ok" and 0 < self.status < 400


class Ledger:
    """Counts outcomes once each, when a request has ended."""

    def __init__(self, metrics: RouterMetrics, log: bool) -> None:
        self._metrics = metrics
        self._log = log

    def enter(self, outcome: Outcome) -> None:
        """Book an outcome."""
        metrics = self._metrics
        metrics.tiers.labels(outcome.tier).inc()
        if outcome.replica:
            replica = outcome.replica
            metrics.requests.labels(replica, outcome.result).inc()
            if outcome.first_byte_seconds is not None:
                metrics.ttft.labels(replica).observe(outcome.first_byte_seconds)
            if outcome.served:
                # Only prompts that were served count: what a broken one computed, nobody tells.
                metrics.prompt_tokens.labels(replica).inc(outcome.prompt_tokens)
                metrics.expected_tokens.labels(replica).inc(outcome.expected_tokens)
                if outcome.hit_tokens is None:
                    metrics.unreported.labels(replica).inc()
                else:
                    metrics.hit_tokens.labels(replica).inc(outcome.hit_tokens)
                for cause, tokens in outcome.misses or ():
                    if tokens:
                        metrics.uncached_tokens.labels(replica, cause.value).inc(tokens)
        else:
            metrics.refusals.labels(str(outcome.status)).inc()
        if self._log:
            access_log.info("%s", _line(outcome))


def _line(outcome: Outcome) -> str:
    hit = "-" if outcome.hit_tokens is None else outcome.hit_tokens
    first = "-" if outcome.first_byte_seconds is None else f"{outcome.first_byte_seconds:.4f}"
    return (
        f"request_id={outcome.request_id} path={outcome.path} status={outcome.status} result={outcome.result}"
        f" replica={outcome.replica or '-'} reason={outcome.reason.replace(' ', '_') or '-'}"
        f" tier={outcome.tier} attempts={outcome.attempts} prompt_tokens={outcome.prompt_tokens}"
        f" expected_tokens={outcome.expected_tokens} hit_tokens={hit} misses={_misses(outcome.misses)}"
        f" first_byte_seconds={first}"
        f" total_seconds={outcome.total_seconds:.4f} client_retry={outcome.client_retry}"
    )


def _misses(misses: Misses | None) -> str:
    return ",".join(f"{cause}:{tokens}" for cause, tokens in misses or () if tokens) or "-"
