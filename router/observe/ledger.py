"""The ledger: what happened to each request, summed by replica, model and turn."""

from __future__ import annotations

from router.observe.access import AccessLine, access_log
from router.observe.labels import turn_label
from router.observe.metrics import RouterMetrics
from router.observe.outcome import Outcome


class Ledger:
    """Counts outcomes once each, when a request has ended."""

    def __init__(self, metrics: RouterMetrics, log: bool) -> None:
        self._metrics = metrics
        self._log = log

    def enter(self, outcome: Outcome) -> None:
        """Book an outcome."""
        self._metrics.of(self._metrics.tiers, outcome.tier).inc()
        if outcome.replica:
            self._enter_replica(outcome)
        else:
            self._metrics.of(self._metrics.refusals, str(outcome.status)).inc()
        # A replica is asked only for models that it serves.
        model = self._metrics.models.of(outcome.model, served=bool(outcome.replica))
        self._metrics.of(self._metrics.model_requests, model, outcome.result).inc()
        if outcome.served:
            self._enter_model(outcome, model)
            if turn := turn_label(outcome.turn):
                self._enter_turn(outcome, model, turn)
        if self._log:
            access_log.info(AccessLine(outcome))

    def _enter_replica(self, outcome: Outcome) -> None:
        metrics, replica = self._metrics, outcome.replica
        metrics.of(metrics.requests, replica, outcome.result).inc()
        if outcome.first_byte_seconds is not None:
            metrics.of(metrics.ttft, replica).observe(outcome.first_byte_seconds)
        if not outcome.served:
            # Only prompts that were served count: what a broken one computed, nobody tells.
            return
        metrics.of(metrics.prompt_tokens, replica).inc(outcome.prompt_tokens)
        metrics.of(metrics.expected_tokens, replica).inc(outcome.expected_tokens)
        if outcome.hit_tokens is None:
            metrics.of(metrics.unreported, replica).inc()
        else:
            metrics.of(metrics.hit_tokens, replica).inc(outcome.hit_tokens)
        for cause, tokens in outcome.misses or ():
            if tokens:
                metrics.of(metrics.uncached_tokens, replica, cause.value).inc(tokens)

    def _enter_model(self, outcome: Outcome, model: str) -> None:
        metrics, first, output = self._metrics, outcome.first_byte_seconds, outcome.output_tokens
        metrics.of(metrics.request_seconds, model).observe(outcome.total_seconds)
        if output is None:
            return
        metrics.of(metrics.output_tokens, model).inc(output)
        if outcome.streamed and first is not None and output > 1:
            # The first token came with the first byte.
            seconds = max(0.0, outcome.total_seconds - first) / (output - 1)
            metrics.of(metrics.output_token_seconds, model).observe(seconds)

    def _enter_turn(self, outcome: Outcome, model: str, turn: str) -> None:
        metrics = self._metrics
        if outcome.hit_tokens is not None:
            metrics.of(metrics.turn_prompt_tokens, model, turn).inc(outcome.prompt_tokens)
            metrics.of(metrics.turn_hit_tokens, model, turn).inc(outcome.hit_tokens)
        if outcome.streamed and outcome.first_byte_seconds is not None:
            # The first byte of an answer that comes whole comes after its last token.
            metrics.of(metrics.turn_ttft, model, turn).observe(outcome.first_byte_seconds)
