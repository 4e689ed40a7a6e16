"""Options of the fleet: where replicas come from, what they are, how they are watched."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator

from router.settings import NAME_PATTERN, Options
from router.wire.prefill_options import PrefillOptions


class ReplicaAddress(Options):
    """One replica of a static fleet."""

    name: str = Field(pattern=NAME_PATTERN, description="Stable name: the ring goes by it, clients see it.")
    url: str = Field(pattern=r"^https?://[^/@\s]+/?$", description="Scheme, host and port.")

    @field_validator("url")
    @classmethod
    def _no_slash(cls, url: str) -> str:
        return url.rstrip("/")


class DnsOptions(Options):
    """A fleet found by name, such as a headless Service: each address is a replica."""

    host: str = Field("", max_length=253, description="The name to resolve; empty turns this source off.")
    record: Literal["address", "srv"] = Field(
        "address", description="A and AAAA, or SRV, which tells ports and drains by weight 0."
    )
    port: int = Field(8000, ge=1, le=65_535, description="Where every replica listens; SRV tells its own.")
    refresh_seconds: float = Field(
        5, ge=0.1, le=300, description="Longest between two look-ups; a shorter TTL shortens it."
    )
    least_refresh_seconds: float = Field(
        1, ge=0.05, le=300, description="Shortest, whatever the TTL: clusters like to say 0."
    )
    nameservers: tuple[str, ...] = Field(
        (), max_length=8, description="Resolvers to ask, as ADDRESS or ADDRESS:PORT; none: the system's."
    )


class KubernetesOptions(Options):
    """A fleet found by the EndpointSlices of a Service."""

    service: str = Field("", max_length=63, description="The Service; empty turns this source off.")
    namespace: str = Field("", max_length=63, description="Of the Service; empty is the router's own.")
    port: str = Field(
        "", max_length=15, description="Name or number of the slices' port; empty where there is only one."
    )
    url: str = Field(
        "",
        pattern=r"^(https?://[^/@\s]+/?)?$",
        description="The API server; empty is the one that pods are told of.",
    )
    token_file: Path = Field(
        Path("/var/run/secrets/kubernetes.io/serviceaccount/token"),
        description="Read anew for each request, as tokens are rotated.",
    )
    ca_file: Path = Field(
        Path("/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"), description="Who the server is."
    )
    watch_seconds: float = Field(
        300, ge=1, le=3600, description="A watch is begun anew after this; an idle one may be dead unnoticed."
    )


class LeaseOptions(Options):
    """A fleet whose replicas hold leases in Redis."""

    enabled: bool = Field(False, description="Read the leases of redis.group; needs redis.url.")
    refresh_seconds: float = Field(
        1, ge=0.05, le=60, description="Between two readings, unless a replica's hint comes before."
    )


class EventOptions(Options):
    """KV events of engines that publish no digest."""

    source: Literal["off", "replica", "sidecar"] = Field(
        "off",
        description="Each replica's own, decoded here; or a sidecar's in its pod, which serves digests.",
    )
    port: int = Field(5557, ge=1, le=65_535, description="Where replicas publish that tell no port; vLLM's.")
    replay_port: int = Field(
        0, ge=0, le=65_535, description="Where they replay what was missed; 0 where they do not."
    )
    topic: str = Field("", max_length=200, description="Prefix of the topics listened to; vLLM's default.")
    sidecar_port: int = Field(8100, ge=1, le=65_535, description="Where sidecars serve digests.")
    index_blocks: int = Field(
        1_000_000,
        ge=1024,
        le=100_000_000,
        description="Blocks known of one replica at most, some 300 bytes each; 16 million tokens.",
    )


class HandoverOptions(Options):
    """What becomes of the hot prefixes of a replica that drains."""

    prefill_tokens: int = Field(
        65_536,
        ge=0,
        le=100_000_000,
        description="Computed at new homes for one that drains, at most: some seconds of a GPU. 0 is off.",
    )
    prefixes: int = Field(64, ge=1, le=4096, description="Handed over at most, the hottest first.")
    seconds: float = Field(10, gt=0, le=600, description="After this it ends: the old replica is going.")
    busy_seconds: float = Field(
        1, ge=0, le=60, description="A new home whose queue is longer is left alone: requests go before."
    )


class CalibrationOptions(Options):
    """How the router learns what prefills cost on each replica."""

    start: PrefillOptions = Field(
        PrefillOptions(), description="S until something is known; that of the study routing is tuned on."
    )
    memory_observations: int = Field(
        100,
        ge=10,
        le=100_000,
        description="Prefills that an estimate rests on; fewer follow noise, more are slow after a change.",
    )
    noise_ratio: float = Field(
        0.3,
        ge=0.03,
        le=1,
        description="How far prefills stray from S, until that is learned: as on busy CPUs.",
    )
    unlike_ratio: float = Field(
        0.2,
        ge=0.001,
        le=0.999,
        description="Share of replicas that differ in speed from others of their model; most fleets are of "
        "one kind. Near 1, each replica's own account is taken as it is.",
    )


class HungOptions(Options):
    """How a replica is told that hangs from one that is busy."""

    poll_timeout_seconds: float = Field(
        0.6,
        gt=0,
        le=60,
        description="A state poll without an answer for so long is unanswered; failures_to_suspect of them in"
        " silence, and it hangs: within 2 s by default. What lives answers in milliseconds.",
    )
    busy_seconds: float = Field(
        10,
        ge=0,
        le=600,
        description="So long at most prompts that were sent explain that another engine than ours answers no"
        " poll: some tokenise, or compute, where they answer. Ours answers always.",
    )
    silence_seconds: float = Field(
        2,
        ge=0.1,
        le=600,
        description="Of one that answers polls and begins no stream: silence beyond the wait announced and"
        " three times S is held against it, but none shorter than this: collecting garbage takes less.",
    )


class OutlierOptions(Options):
    """When a replica that suddenly became slow is out, though it answers."""

    ratio: float = Field(
        5,
        ge=1.5,
        le=1000,
        description="First bytes so many times later than expected, against the fleet's median; what is slow"
        " for good is learned and priced, so that less is left to that.",
    )
    least_seconds: float = Field(
        1, ge=0.01, le=600, description="Later than expected by less than this on average is never slow."
    )
    share: float = Field(
        0.34,
        ge=0,
        le=1,
        description="Of a model's replicas out for that at once, though one may always be where there are"
        " others: where many are slow, the cause is another. 0 turns it off.",
    )


class FleetOptions(Options):
    """Who the replicas are and how they are watched."""

    replicas: tuple[ReplicaAddress, ...] = Field((), max_length=1024, description="Static members.")
    dns: DnsOptions = DnsOptions()
    kubernetes: KubernetesOptions = KubernetesOptions()
    leases: LeaseOptions = LeaseOptions()
    engine: Literal["auto", "kvring", "vllm", "sglang", "trtllm", "llamacpp", "plain"] = Field(
        "auto", description="What the replicas run; found out by asking unless told. Plain tells nothing."
    )
    events: EventOptions = EventOptions()
    handover: HandoverOptions = HandoverOptions()
    state_poll_seconds: float = Field(
        0.25,
        ge=0.02,
        le=60,
        description="A replica not heard from for so long is asked; load a second old costs a third more.",
    )
    idle_poll_seconds: float = Field(
        2,
        ge=0.02,
        le=600,
        description="So seldom is asked who tells its load with its answers, and for the health of an engine"
        " that tells its load; and one that was idle, where polls_per_second does not suffice to ask all each"
        " state_poll_seconds: from 51 replicas on by default.",
    )
    polls_per_second: float = Field(
        200,
        gt=0,
        le=100_000,
        description="Of one router, over all replicas: a large fleet is asked less often.",
    )
    digest_poll_seconds: float = Field(
        2, ge=0.1, le=600, description="Caches turn over in minutes; the router's own memory bridges the gap."
    )
    probe_timeout_seconds: float = Field(
        2, gt=0, le=60, description="Longest wait for what a replica is, and for its digest."
    )
    hung: HungOptions = HungOptions()
    outliers: OutlierOptions = OutlierOptions()
    failures_to_suspect: int = Field(
        2, ge=1, le=100, description="Failed probes or answers in a row that take a replica out of rotation."
    )
    warming_seconds: float = Field(
        30,
        ge=0,
        le=3600,
        description="A replica that joins others gets its share bit by bit over this: its cache is empty, and"
        " its queue looks tempting. 0 gives it all at once.",
    )
    calibration: CalibrationOptions = CalibrationOptions()

    @model_validator(mode="after")
    def _names_differ(self) -> FleetOptions:
        names = [replica.name for replica in self.replicas]
        if len(set(names)) != len(names):
            raise ValueError("replicas must have different names")
        return self
