"""The ledger: what happened to each request, summed by replica, model and turn."""

from __future__ import annotations

from router.observe.access import AccessLog
from router.observe.labels import turn_label
from router.observe.metrics import RouterMetrics
from router.observe.outcome import Outcome


class Ledger:
    """Counts outcomes once each, when a request has ended."""

    def __init__(self, metrics: RouterMetrics, log: bool) -> None:
        self._metrics = metrics
        self._log = AccessLog() if log else None

    def enter(self, outcome: Outcome) -> None:
        """Book an outcome."""
        metrics, replica, result, served = self._metrics, outcome.replica, outcome.result, outcome.served
        metrics.tiers.of[(outcome.tier,)].inc()
        if replica:
            metrics.requests.of[replica, result].inc()
            self._enter_replica(outcome, (replica,), served)
        else:
            metrics.refusals.of[(str(outcome.status),)].inc()
        # A replica is asked only for models that it serves.
        model = metrics.models.of(outcome.model, served=bool(replica))
        metrics.model_requests.of[model, result].inc()
        if served:
            self._enter_model(outcome, (model,))
            if turn := turn_label(outcome.turn):
                self._enter_turn(outcome, (model, turn))
        if self._log is not None:
            self._log.enter(outcome)

    def _enter_replica(self, outcome: Outcome, replica: tuple[str], served: bool) -> None:
        metrics, hit = self._metrics, outcome.hit_tokens
        if outcome.first_byte_seconds is not None:
            metrics.ttft.of[replica].observe(outcome.first_byte_seconds)
        if not served:
            # Only prompts that were served count: what a broken one computed, nobody tells.
            return
        metrics.prompt_tokens.of[replica].inc(outcome.prompt_tokens)
        metrics.expected_tokens.of[replica].inc(outcome.expected_tokens)
        if hit is None:
            metrics.unreported.of[replica].inc()
        else:
            metrics.hit_tokens.of[replica].inc(hit)
        if outcome.misses is not None:
            for cause, tokens in outcome.misses.to_json().items():
                metrics.uncached_tokens.of[replica[0], cause].inc(tokens)

    def _enter_model(self, outcome: Outcome, model: tuple[str]) -> None:
        metrics, first, output = self._metrics, outcome.first_byte_seconds, outcome.output_tokens
        metrics.request_seconds.of[model].observe(outcome.total_seconds)
        if output is None:
            return
        metrics.output_tokens.of[model].inc(output)
        if outcome.streamed and first is not None and output > 1:
            # The first token came with the first byte.
            seconds = max(0.0, outcome.total_seconds - first) / (output - 1)
            metrics.output_token_seconds.of[model].observe(seconds)

    def _enter_turn(self, outcome: Outcome, turn: tuple[str, str]) -> None:
        metrics, hit = self._metrics, outcome.hit_tokens
        if hit is not None:
            metrics.turn_prompt_tokens.of[turn].inc(outcome.prompt_tokens)
            metrics.turn_hit_tokens.of[turn].inc(hit)
        if outcome.streamed and outcome.first_byte_seconds is not None:
            # The first byte of an answer that comes whole comes after its last token.
            metrics.turn_ttft.of[turn].observe(outcome.first_byte_seconds)
