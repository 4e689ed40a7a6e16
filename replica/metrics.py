"""What the replica tells Prometheus: vLLM's names where they mean the same, kvring_replica_ for the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from replica.engine import Snapshot
from replica.sequence import Finish
from replica.step import Output, Step
from router.chain.chain import ChainIdentity
from router.wire.report import LoadReport, PrefillCost

_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 600)
OUTCOMES = ("ok", "client_closed", "client_error", "refused", "error")
_LABELS = ("model_name", "engine")


@dataclass(frozen=True, slots=True)
class Readings:
    """Where a scrape reads the present from."""

    snapshot: Callable[[], Snapshot]
    report: Callable[[], LoadReport]
    prefill: Callable[[], PrefillCost]
    handed_over: Callable[[], int]


class Metrics:
    """One replica's metrics, in a registry of their own."""

    def __init__(self, model: str) -> None:
        self._registry = CollectorRegistry()
        self._labels = (model, "0")
        self._first_token = self._histogram("vllm:time_to_first_token", "Seconds to the first token.")
        self._whole = self._histogram("vllm:e2e_request_latency", "Seconds to the last token.")
        self._step = self._histogram("kvring_replica_step", "Seconds a step takes.")
        self._finished = Counter(
            "vllm:request_success",
            "Sequences finished, by reason.",
            (*_LABELS, "finished_reason"),
            registry=self._registry,
        )
        self._requests = Counter(
            "kvring_replica_requests", "Requests by outcome.", ("outcome",), registry=self._registry
        )
        for outcome in OUTCOMES:
            self._requests.labels(outcome)
        self._draining = Gauge(
            "kvring_replica_draining", "1 once no new work is taken.", registry=self._registry
        )

    def observe_output(self, output: Output, seconds: float, first: bool) -> None:
        """Count what a step brought a sequence, so long after its request was let in."""
        if first:
            self._first_token.observe(seconds)
        if output.finish in (Finish.STOP, Finish.LENGTH):
            self._whole.observe(seconds)
            self._finished.labels(*self._labels, output.finish.value).inc()

    def observe_step(self, step: Step, seconds: float) -> None:
        """Count a step."""
        self._step.observe(seconds)

    def observe_request(self, outcome: str) -> None:
        """Count a request by one of OUTCOMES."""
        self._requests.labels(outcome).inc()

    def watch_draining(self, draining: Callable[[], bool]) -> None:
        """Report at every scrape whether the replica drains."""
        self._draining.set_function(draining)

    def watch_events(self, counts: Callable[[], tuple[int, int]]) -> None:
        """Report at every scrape how many batches of KV events were published, and dropped."""
        self._registry.register(_EventsCollector(counts))

    def watch(self, readings: Readings, identity: ChainIdentity, caching: bool) -> None:
        """Report the engine's state at every scrape from now on."""
        self._registry.register(_EngineCollector(readings, identity, caching, self._labels))

    def render(self) -> bytes:
        """Return Prometheus' text format."""
        return generate_latest(self._registry)

    def _histogram(self, name: str, text: str) -> Histogram:
        histogram = Histogram(f"{name}_seconds", text, _LABELS, buckets=_SECONDS, registry=self._registry)
        return histogram.labels(*self._labels)


class _EventsCollector(Collector):
    """Reads what the publisher counts."""

    def __init__(self, counts: Callable[[], tuple[int, int]]) -> None:
        self._counts = counts

    def collect(self) -> Iterable[Metric]:
        published, dropped = self._counts()
        yield CounterMetricFamily("kvring_replica_events", "Batches of KV events published.", published)
        yield CounterMetricFamily(
            "kvring_replica_events_dropped", "Batches lost, as too many waited to be sent.", dropped
        )


class _EngineCollector(Collector):
    """Reads the engine when it is scraped, so that no number is kept twice."""

    def __init__(
        self, readings: Readings, identity: ChainIdentity, caching: bool, labels: tuple[str, str]
    ) -> None:
        self._readings = readings
        self._identity = identity
        self._caching = caching
        self._labels = labels

    def collect(self) -> Iterable[Metric]:
        snapshot, report = self._readings.snapshot(), self._readings.report()
        yield from self._gauges(snapshot, report)
        yield from self._counters(snapshot)
        yield CounterMetricFamily(
            "kvring_replica_handed_over_prefixes",
            "Hot prefixes given to routers while draining.",
            self._readings.handed_over(),
        )
        cost = self._readings.prefill()
        coefficients = GaugeMetricFamily(
            "kvring_replica_prefill_seconds", "Coefficients of S as measured.", labels=("coefficient",)
        )
        for name in PrefillCost.__slots__:
            coefficients.add_metric((name,), getattr(cost, name))
        yield coefficients
        yield self._info(snapshot)
        chain = InfoMetricFamily("kvring_replica_chain", "Identity of the chain.")
        chain.add_metric(
            (),
            {
                "kind": self._identity.kind,
                "algorithm": self._identity.algorithm,
                "block_tokens": str(self._identity.block_tokens),
                "fingerprint": self._identity.fingerprint,
            },
        )
        yield chain

    def _gauges(self, snapshot: Snapshot, report: LoadReport) -> Iterable[Metric]:
        for name, text, value in (
            ("vllm:num_requests_running", "Sequences in the running batch.", report.running),
            ("vllm:num_requests_waiting", "Sequences that wait.", report.waiting),
            ("vllm:kv_cache_usage_perc", "Share of the blocks that is held, 0 to 1.", report.kv_usage),
            ("kvring_replica_work_seconds", "Seconds of prefill queued or running.", report.work_seconds),
            ("kvring_replica_cached_blocks", "Different blocks that can be found.", snapshot.cached_names),
            ("kvring_replica_free_blocks", "Blocks nobody holds.", snapshot.free_blocks),
            ("kvring_replica_cache_epoch", "Times the cache was cleared.", snapshot.epoch),
        ):
            family = GaugeMetricFamily(name, text, labels=_LABELS)
            family.add_metric(self._labels, value)
            yield family

    def _counters(self, snapshot: Snapshot) -> Iterable[Metric]:
        counts = snapshot.counts
        for name, text, value in (
            ("vllm:prefix_cache_queries", "Prompt tokens looked up.", counts.prefix_queries),
            ("vllm:prefix_cache_hits", "Prompt tokens found.", counts.prefix_hits),
            ("vllm:prompt_tokens", "Tokens of the prompts served.", counts.prompt_tokens),
            ("vllm:generation_tokens", "Tokens sampled.", counts.generated_tokens),
            ("vllm:num_preemptions", "Sequences that lost their blocks to others.", counts.preemptions),
            ("kvring_replica_prefill_tokens", "Prompt tokens computed.", counts.prefill_tokens),
            ("kvring_replica_recomputed_tokens", "Computed again once preempted.", counts.recomputed_tokens),
            ("kvring_replica_prewarm_tokens", "Computed for no request yet.", counts.prewarm_tokens),
            ("kvring_replica_steps", "Steps run.", snapshot.steps),
        ):
            family = CounterMetricFamily(name, text, labels=_LABELS)
            family.add_metric(self._labels, value)
            yield family

    def _info(self, snapshot: Snapshot) -> Metric:
        # vLLM's is a gauge by type, and dashboards join on it.
        family = GaugeMetricFamily(
            "vllm:cache_config_info",
            "The cache's options.",
            labels=("engine", "block_size", "num_gpu_blocks", "enable_prefix_caching"),
        )
        blocks = (str(self._identity.block_tokens), str(snapshot.block_count), str(self._caching))
        family.add_metric(("0", *blocks), 1)
        return family
