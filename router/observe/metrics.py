"""Prometheus metrics of a router, in a registry of its own. Labels are bounded: see `labels`."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from router.observe.labels import ModelLabels
from router.observe.log_lines import LogMetrics
from router.observe.series import (
    Counter,
    Family,
    Gauge,
    Histogram,
    Labels,
    Some,
    counters,
    gauges,
    histograms,
)

# From a hit on a small model to the longest queue and prefill that is allowed.
_TTFT_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
# By model and turn there are many: fewer buckets each.
_TURN_BUCKETS = (0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_REQUEST_BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_OUTPUT_BUCKETS = (0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1)
_DECISION_BUCKETS = (2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2.5e-3, 1e-2, 5e-2)
_WAIT_BUCKETS = (0.01, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)

_TAKEN, _REFUSED = "taken", "refused"


class RouterMetrics:
    """Every metric by its name. Token counters go by replica: asked, expected and hit add up alike."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.models = ModelLabels()
        # What the process itself takes: CPU seconds, memory, open files.
        ProcessCollector(namespace="kvring", registry=self.registry)
        self.registry.register(LogMetrics())
        self._add_requests()
        self._add_models()
        self._add_replicas()
        self._add_fleet()
        self._add_shadows()

    def _add_requests(self) -> None:
        self.info = self._gauges(
            "info",
            "1, for what runs here: its version, policy, the run it is part of, its options' fingerprint.",
            ("version", "policy", "run", "config"),
        )
        self.requests = self._counters(
            "requests", "Requests by who answered and how.", ("replica", "outcome")
        )
        self.tiers = self._counters("prompts", "Prompts by how they were named.", ("tier",))
        self.failovers = self._counters(
            "failovers", "Requests sent on from a replica before its first byte.", ("replica", "reason")
        )
        self.continued = self._counters(
            "continued_streams",
            "Streams whose replica died, by whether others went on with them.",
            ("result",),
        )
        self.refusals = self._counters("refusals", "Requests that no replica saw, by status.", ("status",))
        self.shed = self._counters("shed", "Requests that this router turned away, by why.", ("reason",))
        self.ttft = self._histograms(
            "time_to_first_byte_seconds",
            "From a request's arrival to the first byte of the answer's body.",
            _TTFT_BUCKETS,
            ("replica",),
        )
        self.decision = self._histogram("decision_seconds", "Time to rank the replicas.", _DECISION_BUCKETS)
        self.waited = self._histogram(
            "wait_seconds",
            "How long requests waited for a usable replica, of those that had to.",
            _WAIT_BUCKETS,
        )
        self.waiting = self._gauge("waiting_requests", "Requests waiting for a usable replica.")
        self.in_flight = self._gauge("in_flight_requests", "Requests held by this router.")

    def _add_models(self) -> None:
        by_model, by_turn = ("model",), ("model", "turn")
        self.model_requests = self._counters(
            "model_requests",
            "Requests by model and how they ended; models that nobody serves are 'other'.",
            ("model", "outcome"),
        )
        self.request_seconds = self._histograms(
            "request_seconds",
            "From a request's arrival to the end of its answer, of those served.",
            _REQUEST_BUCKETS,
            by_model,
        )
        self.output_tokens = self._counters(
            "output_tokens", "Tokens of the answers, as replicas told.", by_model
        )
        self.output_token_seconds = self._histograms(
            "time_per_output_token_seconds",
            "Of a stream behind its first byte: its time by its tokens but the first.",
            _OUTPUT_BUCKETS,
            by_model,
        )
        # A turn's number is that of the user's messages in its prompt; completions have none.
        self.turn_prompt_tokens = self._counters(
            "turn_prompt_tokens", "Prompt tokens of chats by their turn, where hits were told.", by_turn
        )
        self.turn_hit_tokens = self._counters(
            "turn_hit_tokens", "Of these, tokens that the replica reported as cached.", by_turn
        )
        self.turn_ttft = self._histograms(
            "turn_time_to_first_byte_seconds",
            "From arrival to the first byte of a streamed answer, by the chat's turn.",
            _TURN_BUCKETS,
            by_turn,
        )

    def _add_replicas(self) -> None:
        by_replica = ("replica",)
        self.prompt_tokens = self._counters("prompt_tokens", "Prompt tokens asked of a replica.", by_replica)
        self.expected_tokens = self._counters(
            "expected_hit_tokens",
            "Prompt tokens that the policy expected in the replica's cache.",
            by_replica,
        )
        self.hit_tokens = self._counters(
            "hit_tokens", "Prompt tokens that the replica reported as cached.", by_replica
        )
        self.uncached_tokens = self._counters(
            "uncached_tokens",
            "Prompt tokens not served from cache, by why; they add up to prompt less hit tokens.",
            ("replica", "cause"),
        )
        self.unreported = self._counters(
            "hit_unreported", "Answers whose cached tokens the replica did not report.", by_replica
        )
        self.replica_in_flight = self._gauges(
            "replica_in_flight_requests", "Leases on a replica.", by_replica
        )
        self.replica_usable = self._gauges("replica_usable", "1 where requests are routed to.", by_replica)
        self.replica_work = self._gauges(
            "replica_work_seconds", "Queued uncached prefill that a replica last reported.", by_replica
        )
        self.replica_kv_usage = self._gauges(
            "replica_kv_usage_ratio",
            "Share of its KV blocks that requests hold, as last reported.",
            by_replica,
        )
        self.replica_running = self._gauges(
            "replica_running_requests", "Requests of all routers that it runs, as last reported.", by_replica
        )
        self.replica_waiting = self._gauges(
            "replica_waiting_requests", "Requests of all routers in its queue, as last reported.", by_replica
        )
        self.digest_age = self._gauges(
            "replica_digest_age_seconds",
            "Age of a replica's digest; of the last one that it had, where it has none now.",
            by_replica,
        )
        self.chain_mismatch = self._gauges(
            "replica_chain_mismatch",
            "1 where a replica names blocks otherwise than this router: it is routed to without digests.",
            by_replica,
        )

    def _add_fleet(self) -> None:
        self.fleet_replicas = self._gauges("fleet_replicas", "Members of the fleet by state.", ("state",))
        self.left_out_members = self._gauge(
            "fleet_left_out_members", "Members beyond the most that a fleet may have."
        )
        self.discovery_up = self._gauges(
            "discovery_up", "1 where a source of members answered when last asked.", ("source",)
        )
        self.discovery_age = self._gauges(
            "discovery_age_seconds", "Since a source of members last answered.", ("source",)
        )
        self.handover_prefixes = self._counters(
            "handover_prefixes", "Hot prefixes of replicas that drain, by what became of them.", ("result",)
        )
        self.handover_tokens = self._counter(
            "handover_tokens", "Prompt tokens computed at new homes ahead of their requests."
        )
        self.config_reloads = self._counters(
            "config_reloads", "Options read anew, by whether they were taken.", ("result",)
        )
        for result in (_TAKEN, _REFUSED):
            self.config_reloads.labels(result)
        self.config_current = self._gauge(
            "config_current", "0 where the options were changed and refused: the old ones go on."
        )
        self.config_current.set(1)

    def _add_shadows(self) -> None:
        by_shadow, by_course = ("shadow",), ("shadow", "course")
        self.shadow_ranked = self._counters(
            "shadow_requests", "Sampled requests that a shadow policy ranked.", by_shadow
        )
        self.shadow_agreed = self._counters(
            "shadow_agreements", "Of these, where it chose as the acting policy did.", by_shadow
        )
        self.shadow_errors = self._counters("shadow_errors", "Times that a shadow policy failed.", by_shadow)
        self.shadow_skipped = self._counters(
            "shadow_skipped", "Sampled requests that a shadow had no time left for.", by_shadow
        )
        self.shadow_prompt_tokens = self._counters(
            "shadow_prompt_tokens", "Prompt tokens of the requests that a shadow ranked.", by_shadow
        )
        # The course says whose choices were followed: the shadow's or, for comparison, the acting policy's.
        self.shadow_hit_tokens = self._counters(
            "shadow_hit_tokens", "Of these, estimated hits had all gone one policy's way.", by_course
        )
        self.shadow_moved = self._counters(
            "shadow_moved_turns", "Turns that would have left their conversation's replica.", by_course
        )
        self.shadow_busiest = self._gauges(
            "shadow_busiest_share", "The busiest replica's share of the computing then.", by_course
        )

    def of(self, family: Family[Some], *labels: str) -> Some:
        """Return one of a metric's series; ask anew each time, as it may be forgotten."""
        return family.of[labels]

    def introduce(self, version: str, policy: str, run: str, config: str) -> None:
        """Say what runs here, instead of what did before."""
        self.info.clear()
        self.info.labels(version, policy, run, config).set(1)

    def reloaded(self, taken: bool) -> None:
        """Note that options were read anew, and whether they were taken."""
        self.config_reloads.labels(_TAKEN if taken else _REFUSED).inc()
        self.config_current.set(taken)

    def forget_gauges(self, replica: str) -> None:
        """Drop the gauges of a replica that left."""
        for gauge in (
            self.replica_in_flight,
            self.replica_usable,
            self.replica_work,
            self.replica_kv_usage,
            self.replica_running,
            self.replica_waiting,
            self.digest_age,
            self.chain_mismatch,
        ):
            gauge.remove_by_labels({"replica": replica})

    def forget_counters(self, replica: str) -> None:
        """Drop the counters of a replica that will not come back under its name."""
        for counter in (
            self.requests,
            self.prompt_tokens,
            self.expected_tokens,
            self.hit_tokens,
            self.uncached_tokens,
            self.unreported,
            self.failovers,
            self.ttft,
        ):
            counter.remove_by_labels({"replica": replica})

    def forget_shadow(self, shadow: str) -> None:
        """Drop the series of a shadow policy that is gone."""
        for family in (
            self.shadow_ranked,
            self.shadow_agreed,
            self.shadow_errors,
            self.shadow_skipped,
            self.shadow_prompt_tokens,
            self.shadow_hit_tokens,
            self.shadow_moved,
            self.shadow_busiest,
        ):
            family.remove_by_labels({"shadow": shadow})

    def render(self) -> bytes:
        """Return the exposition text."""
        return generate_latest(_WithoutTimes(self.registry))

    def _counters(self, name: str, text: str, labels: Labels) -> Family[Counter]:
        return self._registered(counters(f"kvring_{name}", text, labels))

    def _counter(self, name: str, text: str) -> Counter:
        return self._registered(counters(f"kvring_{name}", text)).only()

    def _gauges(self, name: str, text: str, labels: Labels) -> Family[Gauge]:
        return self._registered(gauges(f"kvring_{name}", text, labels))

    def _gauge(self, name: str, text: str) -> Gauge:
        return self._registered(gauges(f"kvring_{name}", text)).only()

    def _histograms(
        self, name: str, text: str, bounds: tuple[float, ...], labels: Labels
    ) -> Family[Histogram]:
        return self._registered(histograms(f"kvring_{name}", text, bounds, labels))

    def _histogram(self, name: str, text: str, bounds: tuple[float, ...]) -> Histogram:
        return self._registered(histograms(f"kvring_{name}", text, bounds)).only()

    def _registered(self, family: Family[Some]) -> Family[Some]:
        self.registry.register(family)
        return family


class _WithoutTimes(Collector):
    """All metrics without when each series began, which doubles the page and which nobody reads."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterable[Metric]:
        for metric in self._registry.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric
