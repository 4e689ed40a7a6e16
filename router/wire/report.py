"""What a replica tells of itself: `GET /state`, and the load that rides on every response."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

from router.chain.chain import ChainIdentity

ORCA_REQUEST_HEADER = "endpoint-load-metrics-format"
ORCA_HEADER = "endpoint-load-metrics"

# How old a digest is, in seconds, on an answer with it and on one without a body, which cannot tell it there.
DIGEST_AGE_HEADER = "x-kvring-digest-age"

# Served for so long who does not say: long enough for anything.
LONG_SECONDS = 1e9

_PREFIX = "named_metrics."


@dataclass(frozen=True, slots=True)
class LoadReport:
    """A replica's load. `work_seconds` is queued and running uncached prefill; `sequence` orders reports."""

    work_seconds: float
    running: int
    waiting: int
    kv_usage: float
    sequence: int

    def to_orca(self) -> str:
        """Return the value of the ORCA header, in its text form, under vLLM's names where they exist."""
        return (
            f"TEXT {_PREFIX}work_s={self.work_seconds:.6f}, {_PREFIX}num_requests_running={self.running}, "
            f"{_PREFIX}num_requests_waiting={self.waiting}, "
            f"{_PREFIX}kv_cache_usage_perc={self.kv_usage:.4f}, {_PREFIX}sequence={self.sequence}"
        )

    @classmethod
    def from_orca(cls, value: str) -> LoadReport | None:
        """Read the header; None where it does not hold a kvring replica's report."""
        form, _, rest = value.partition(" ")
        if form != "TEXT" or len(value) > 2048:
            return None
        numbers: dict[str, float] = {}
        for pair in rest.split(","):
            name, _, number = pair.strip().partition("=")
            try:
                numbers[name.removeprefix(_PREFIX)] = float(number)
            except ValueError:
                return None
        try:
            return cls._of(numbers["work_s"], numbers, "num_requests_", "kv_cache_usage_perc")
        except (KeyError, ValueError, OverflowError):
            return None

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> LoadReport:
        """Read the `load` part of a state; ValueError if it is not one."""
        try:
            return cls._of(float(body["work_seconds"]), body, "", "kv_usage")
        except (KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"not a load report: {error!r}") from error

    @classmethod
    def _of(cls, work: float, values: Mapping[str, Any], prefix: str, usage: str) -> LoadReport:
        report = cls(
            work_seconds=work,
            running=int(values[f"{prefix}running"]),
            waiting=int(values[f"{prefix}waiting"]),
            kv_usage=float(values[usage]),
            sequence=int(values["sequence"]),
        )
        if not (isfinite(report.work_seconds) and isfinite(report.kv_usage)):
            raise ValueError("a load report is finite")
        if min(report.work_seconds, report.running, report.waiting) < 0:
            raise ValueError("a load report is not negative")
        return report


@dataclass(frozen=True, slots=True)
class PrefillCost:
    """S(L, hit): the seconds a replica takes to compute a prompt of L tokens of which `hit` are cached.

    S = base + per_token * u + per_token_context * u * (L - u / 2) with u = max(1, L - hit) tokens to compute.
    """

    base_seconds: float = 0.010
    per_token_seconds: float = 1e-4
    per_token_context_seconds: float = 3e-9

    def seconds(self, prompt_tokens: float, hit_tokens: float) -> float:
        """Return S(prompt_tokens, hit_tokens)."""
        uncached = max(1.0, prompt_tokens - hit_tokens)
        return (
            self.base_seconds
            + self.per_token_seconds * uncached
            + self.per_token_context_seconds * uncached * (prompt_tokens - uncached / 2)
        )

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> PrefillCost:
        """Read coefficients; ValueError unless they are finite, none negative, and growing with tokens."""
        try:
            cost = cls(*(float(body[name]) for name in cls.__slots__))
        except (KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"not a prefill cost: {error!r}") from error
        values = (cost.base_seconds, cost.per_token_seconds, cost.per_token_context_seconds)
        if not all(isfinite(value) and value >= 0 for value in values) or cost.per_token_seconds == 0:
            raise ValueError("a prefill cost has finite coefficients of at least zero, per_token above it")
        return cost


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """The answer of `GET /state`.

    `name` is stable over restarts, `uid` new with each process, `cache_epoch` new with each cleared cache.
    `ready` is false while it loads or is broken, `draining` true once it takes no new work. `serving_seconds`
    is how long it has served: one that has just begun is not flooded.
    """

    name: str
    uid: str
    cache_epoch: int
    models: tuple[str, ...]
    chain: ChainIdentity
    load: LoadReport
    prefill: PrefillCost
    context_tokens: int
    block_count: int
    free_blocks: int
    ready: bool = True
    draining: bool = False
    serving_seconds: float = LONG_SECONDS

    @property
    def epoch(self) -> str:
        """Names one life of the cache: credit given for another epoch is void."""
        return f"{self.uid}:{self.cache_epoch}"

    def to_json(self) -> dict[str, Any]:
        """Return the wire form."""
        return asdict(self)

    @classmethod
    def from_json(cls, body: object) -> ReplicaState:
        """Read the wire form; ValueError if it is not one. Unknown fields are ignored."""
        if not isinstance(body, dict):
            raise ValueError("a state is a JSON object")
        try:
            chain = body["chain"]
            return cls(
                name=_text(body["name"]),
                uid=_text(body["uid"]),
                cache_epoch=int(body["cache_epoch"]),
                models=tuple(_text(model) for model in body["models"]),
                chain=ChainIdentity(
                    kind=_text(chain["kind"]),
                    algorithm=_text(chain["algorithm"]),
                    block_tokens=_count(chain["block_tokens"], least=1),
                    root_fingerprint=_text(chain["root_fingerprint"]),
                    tokenizer_fingerprint=_text(chain["tokenizer_fingerprint"], empty=True),
                    template_fingerprint=_text(chain["template_fingerprint"], empty=True),
                ),
                load=LoadReport.from_json(body["load"]),
                prefill=PrefillCost.from_json(body["prefill"]),
                context_tokens=_count(body["context_tokens"]),
                block_count=_count(body["block_count"]),
                free_blocks=_count(body["free_blocks"]),
                ready=bool(body.get("ready", True)),
                draining=bool(body.get("draining", False)),
                serving_seconds=_seconds(body.get("serving_seconds", LONG_SECONDS)),
            )
        except (KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"not a replica's state: {error!r}") from error


def _seconds(value: Any) -> float:
    seconds = float(value)
    if not (isfinite(seconds) and seconds >= 0):
        raise ValueError("seconds in a state are finite and not negative")
    return seconds


def _text(value: object, *, empty: bool = False) -> str:
    if not isinstance(value, str) or len(value) > 256 or not (value or empty):
        raise ValueError("names in a state are text of 1 to 256 characters")
    return value


def _count(value: Any, *, least: int = 0) -> int:
    number = int(value)
    if number < least:
        raise ValueError(f"counts in a state are at least {least}, not {number}")
    return number
