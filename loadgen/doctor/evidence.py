"""Evidence: everything that checks may look at, gathered before the first of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from loadgen.doctor.figures import Figures
from loadgen.doctor.reach import Skew
from router.chain.namers import Namers
from router.config import RouterConfig
from router.engines.engine import EngineFacts
from router.observe.layout.report import LayoutReport
from router.wire.report import ReplicaState


@dataclass(frozen=True, slots=True)
class DigestSeen:
    """What serves a digest. `problem` says why there is none, `age_seconds` how old what is there is."""

    problem: str = ""
    identity: str = ""
    age_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ReplicaSeen:
    """A member that the doctor asked itself.

    `name` is its own or its configuration's; `problem` says why nothing is known of it. `kind` is its engine.
    `prefix_caching` and `tells_cached` are None where it does not tell whether they are on. `deaf` are the
    addresses of its KV events where nobody listens, with why; `digest` is its own, or its sidecar's.
    """

    url: str
    name: str = ""
    problem: str = ""
    kind: str = ""
    ready: bool = False
    state: ReplicaState | None = None
    facts: EngineFacts | None = None
    prefix_caching: bool | None = None
    tells_cached: bool | None = None
    skew: Skew | None = None
    deaf: Mapping[str, str] = field(default_factory=dict)
    digest: DigestSeen | None = None

    @property
    def models(self) -> tuple[str, ...]:
        """What it serves, the main one first."""
        return self.state.models if self.state else self.facts.models if self.facts else ()

    @property
    def model(self) -> str:
        """The one that its blocks are named for."""
        return self.models[0] if self.models else ""

    @property
    def block_tokens(self) -> int | None:
        """Its KV block, where it tells."""
        if self.state:
            return self.state.chain.block_tokens
        return self.facts.block_tokens if self.facts else None

    @property
    def context_tokens(self) -> int | None:
        """Its longest sequence, where it tells."""
        if self.state:
            return self.state.context_tokens
        return self.facts.context_tokens if self.facts else None


@dataclass(frozen=True, slots=True)
class RoutedReplica:
    """A replica as a router tells of it."""

    name: str
    engine: str
    state: str
    models: tuple[str, ...]
    mismatch: bool
    digest_age_seconds: float | None

    @property
    def usable(self) -> bool:
        """Whether requests are sent there."""
        return self.state in ("ready", "warming")


@dataclass(frozen=True, slots=True)
class RouterSeen:
    """A live router. `problem` says why nothing is known of it; `why_no_layout` why layouts are not told."""

    url: str
    problem: str = ""
    version: str = ""
    policy: str = ""
    config: str = ""
    uptime_seconds: float = 0.0
    ready: bool = False
    reason: str = ""
    draining: bool = False
    options_current: bool = True
    redis_up: bool | None = None
    replicas: tuple[RoutedReplica, ...] = ()
    figures: Figures = field(default_factory=lambda: Figures(""))
    layout: LayoutReport | None = None
    why_no_layout: str = ""
    skew: Skew | None = None


@dataclass(frozen=True, slots=True)
class RedisSeen:
    """Redis, as asked from here. `place` is its address, `ask_seconds` the median time of one command."""

    place: str
    problem: str = ""
    ask_seconds: float = 0.0
    read_only: str = ""
    skew: Skew | None = None


@dataclass(frozen=True, slots=True)
class StreamSeen:
    """One request that was sent and its stream. Seconds count from when it was sent."""

    url: str
    replica: str = ""
    problem: str = ""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    answer_tokens: int = 0
    first_seconds: float = 0.0
    total_seconds: float = 0.0

    @property
    def spread_seconds(self) -> float:
        """From the first token to the end."""
        return self.total_seconds - self.first_seconds

    @property
    def at_once(self) -> bool:
        """Whether its tokens came together, at the end: as if something had held them back."""
        return (
            not self.problem
            and self.answer_tokens >= 8
            and self.total_seconds >= 0.1
            and self.spread_seconds <= 0.1 * self.total_seconds
        )


@dataclass(frozen=True, slots=True)
class Trial:
    """The requests of one model: the same prompt twice, and once more past what may hold a stream back."""

    model: str
    first: StreamSeen
    second: StreamSeen | None = None
    direct: StreamSeen | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """All of it. What was not asked for is None or empty.

    `config_problems` are lines that say why a configuration cannot be used. `replicas` were asked from here;
    `left_out` are as many more. `silent_sources` say why members are not known, by the source that should
    tell. `public_control` is an address for clients that also answers what only operators should ask.
    """

    config: RouterConfig | None = None
    config_problems: tuple[str, ...] = ()
    namers: Namers | None = None
    silent_sources: Mapping[str, str] = field(default_factory=dict)
    replicas: tuple[ReplicaSeen, ...] = ()
    left_out: int = 0
    router: RouterSeen | None = None
    redis: RedisSeen | None = None
    trials: tuple[Trial, ...] = ()
    public_control: str = ""

    @property
    def reached(self) -> tuple[ReplicaSeen, ...]:
        """The replicas that told what they are."""
        return tuple(replica for replica in self.replicas if replica.state or replica.facts)

    @property
    def live(self) -> RouterSeen | None:
        """The router, where it answered."""
        return self.router if self.router and not self.router.problem else None

    def engine_of(self, name: str) -> str:
        """Return the engine of a replica by its name, empty where that is not known."""
        for replica in self.replicas:
            if replica.name == name and replica.kind:
                return replica.kind
        routed = self.live.replicas if self.live else ()
        return next((replica.engine for replica in routed if replica.name == name), "")

    def by_model(self) -> dict[str, list[ReplicaSeen]]:
        """Return the replicas that told what they are, by their main model."""
        found: dict[str, list[ReplicaSeen]] = {}
        for replica in self.reached:
            found.setdefault(replica.model, []).append(replica)
        return found
