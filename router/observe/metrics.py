"""Prometheus metrics of a router, in a registry of its own. Labels are bounded: replicas, outcomes, tiers."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_TTFT_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_DECISION_BUCKETS = (2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2.5e-3, 1e-2, 5e-2)


class RouterMetrics:
    """Every metric by its name. Token counters go by replica: asked, expected and hit add up alike."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        by_replica = ("replica",)
        self.requests = self._counter("requests", "Requests by who answered and how.", ("replica", "outcome"))
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens asked of a replica.", by_replica)
        self.expected_tokens = self._counter(
            "expected_hit_tokens",
            "Prompt tokens that the policy expected in the replica's cache.",
            by_replica,
        )
        self.hit_tokens = self._counter(
            "hit_tokens", "Prompt tokens that the replica reported as cached.", by_replica
        )
        self.uncached_tokens = self._counter(
            "uncached_tokens",
            "Prompt tokens not served from cache, by why; they add up to prompt less hit tokens.",
            ("replica", "cause"),
        )
        self.unreported = self._counter(
            "hit_unreported", "Answers whose cached tokens the replica did not report.", by_replica
        )
        self.tiers = self._counter("prompts", "Prompts by how they were named.", ("tier",))
        self.failovers = self._counter(
            "failovers", "Requests sent on from a replica before its first byte.", ("replica", "reason")
        )
        self.refusals = self._counter("refusals", "Requests that no replica saw, by status.", ("status",))
        self.ttft = Histogram(
            "kvring_time_to_first_byte_seconds",
            "From a request's arrival to the first byte of the answer's body.",
            by_replica,
            buckets=_TTFT_BUCKETS,
            registry=self.registry,
        )
        self.decision = Histogram(
            "kvring_decision_seconds",
            "Time to rank the replicas.",
            buckets=_DECISION_BUCKETS,
            registry=self.registry,
        )
        self.in_flight = self._gauge("in_flight_requests", "Requests held by this router.")
        self.replica_in_flight = self._gauge("replica_in_flight_requests", "Leases on a replica.", by_replica)
        self.replica_usable = self._gauge("replica_usable", "1 where requests are routed to.", by_replica)
        self.replica_work = self._gauge(
            "replica_work_seconds", "Queued uncached prefill that a replica last reported.", by_replica
        )
        self.digest_age = self._gauge("replica_digest_age_seconds", "Age of a replica's digest.", by_replica)
        self.chain_mismatch = self._gauge(
            "replica_chain_mismatch",
            "1 where a replica names blocks otherwise than this router: it is routed to without digests.",
            by_replica,
        )

        by_shadow, by_course = ("shadow",), ("shadow", "course")
        self.shadow_ranked = self._counter(
            "shadow_requests", "Sampled requests that a shadow policy ranked.", by_shadow
        )
        self.shadow_agreed = self._counter(
            "shadow_agreements", "Of these, where it chose as the acting policy did.", by_shadow
        )
        self.shadow_errors = self._counter("shadow_errors", "Times that a shadow policy failed.", by_shadow)
        self.shadow_skipped = self._counter(
            "shadow_skipped", "Sampled requests that a shadow had no time left for.", by_shadow
        )
        self.shadow_prompt_tokens = self._counter(
            "shadow_prompt_tokens", "Prompt tokens of the requests that a shadow ranked.", by_shadow
        )
        # The course says whose choices were followed: the shadow's or, for comparison, the acting policy's.
        self.shadow_hit_tokens = self._counter(
            "shadow_hit_tokens", "Of these, estimated hits had all gone one policy's way.", by_course
        )
        self.shadow_moved = self._counter(
            "shadow_moved_turns", "Turns that would have left their conversation's replica.", by_course
        )
        self.shadow_busiest = self._gauge(
            "shadow_busiest_share", "The busiest replica's share of the computing then.", by_course
        )

    def forget_gauges(self, replica: str) -> None:
        """Drop the gauges of a replica that left."""
        for gauge in (
            self.replica_in_flight,
            self.replica_usable,
            self.replica_work,
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

    def render(self) -> bytes:
        """Return the exposition text."""
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(f"kvring_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Gauge:
        return Gauge(f"kvring_{name}", text, labels, registry=self.registry)
