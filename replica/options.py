"""The replica's options: one TOML file, environment (KVRING_REPLICA_...), flags."""

from __future__ import annotations

from socket import gethostname
from typing import Literal, Self

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from replica.event_options import EventOptions
from replica.lease_options import LeaseOptions
from replica.runner.torch_options import TorchOptions
from router.chain.algorithms import ALGORITHMS
from router.chain.options import ChainOptions
from router.settings import NAME_PATTERN, Options, Settings
from router.wire.prefill_options import PrefillOptions
from router.wire.report import PrefillCost

_TEXT = "The quick brown fox jumps over the lazy dog. "


class SchedulerOptions(Options):
    """What one step takes in, and who waits."""

    max_running: int = Field(
        32, ge=1, le=4096, description="Sequences decoding at once; beyond, each slows the others on a CPU."
    )
    max_waiting: int = Field(
        256, ge=0, le=100_000, description="Requests queued beyond those; more are refused, to go elsewhere."
    )
    max_batch_tokens: int = Field(
        512,
        ge=1,
        le=1_000_000,
        description="Tokens a step; a long prompt is cut, so that others' decoding never stalls longer.",
    )

    @model_validator(mode="after")
    def _room_for_decodes(self) -> Self:
        if self.max_batch_tokens < self.max_running:
            raise ValueError("max_batch_tokens must be at least max_running, or some would never decode")
        return self


class LimitOptions(Options):
    """What one request may ask."""

    max_body_bytes: int = Field(
        32 * 1024 * 1024, ge=1024, le=1024**3, description="Long chats of a million tokens still fit."
    )
    max_prompts: int = Field(
        64, ge=1, le=4096, description="Prompts in one completion request; each is a sequence of its own."
    )
    default_answer_tokens: int = Field(
        1024,
        ge=1,
        le=1_000_000,
        description="Where a chat request sets none: a small model that never ends must not run on.",
    )
    thread_bytes: int = Field(
        16 * 1024,
        ge=0,
        le=1024**3,
        description="Bodies above are prepared in a thread: below, the hop costs more than it frees.",
    )
    read_seconds: float = Field(
        60, ge=0.1, le=3600, description="For a body to arrive; a client that dawdles would hold memory."
    )
    write_seconds: float = Field(
        60, ge=0.1, le=3600, description="For a client to take a piece; one that reads nothing is cut off."
    )
    threads: int = Field(
        2, ge=1, le=64, description="Threads that tokenise; more would take the cores that compute."
    )


class EchoOptions(Options):
    """The runner without a model."""

    filler: str = Field(
        _TEXT, min_length=1, max_length=100_000, description="What every answer repeats; any text does."
    )
    prefill: PrefillOptions = Field(
        PrefillOptions(), description="What its prefill takes; those of the study that routing is tuned on."
    )
    decode_seconds: float = Field(
        0.025, ge=0, le=60, description="What a decoding step takes; 40 tokens a second, as a busy GPU."
    )
    block_count: int = Field(
        4096, ge=1, le=10_000_000, description="Size of the pool; 65,536 tokens are some 30 long chats."
    )
    context_tokens: int = Field(
        32_768, ge=2, le=10_000_000, description="Longest sequence; what current models commonly take."
    )


class ReplicaOptions(Settings):
    """Everything a replica is told."""

    model_config = SettingsConfigDict(env_prefix="KVRING_REPLICA_")

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Of the log on stderr."
    )
    name: str = Field(
        default_factory=lambda: gethostname()[:63].strip(".-_") or "replica",
        pattern=NAME_PATTERN,
        description="Stable over restarts: the ring goes by it. The host's, as a StatefulSet's pods keep it.",
    )
    host: str = Field("127.0.0.1", description="Loopback by default: an open port is a decision.")
    port: int = Field(8000, ge=0, le=65_535, description="0 takes a free one; 8000 is where engines listen.")
    model: str = Field(
        "smollm2-135m-instruct", min_length=1, max_length=256, description="Served name; the bundled model's."
    )
    runner: Literal["torch", "echo"] = Field("torch", description="A real model unless told otherwise.")
    model_directory: str = Field(
        "bundled",
        description="A Hugging Face directory; 'bundled' is the small model of a Python package, converted "
        "once; empty is none, for the echo runner alone, whose chain is then over bytes.",
    )
    chain: ChainOptions = ChainOptions()
    enable_prefix_caching: bool = Field(True, description="Off only to compare: nothing is then found.")
    scheduler: SchedulerOptions = SchedulerOptions()
    limits: LimitOptions = LimitOptions()
    prefill: PrefillOptions | None = Field(
        None,
        description="Where the estimate of S starts; by default a small CPU's, or the echo runner's own.",
    )
    echo: EchoOptions = EchoOptions()
    torch: TorchOptions = TorchOptions()
    events: EventOptions = EventOptions()
    lease: LeaseOptions = LeaseOptions()
    digest_seconds: float = Field(
        1.0, ge=0.01, le=600, description="Least time between two digests; routers ask every few seconds."
    )
    keepalive_seconds: float = Field(
        620, ge=1, le=86_400, description="Longer than routers (60) and load balancers (600) keep one idle."
    )
    drain_seconds: float = Field(
        30, ge=0, le=86_400, description="Running answers may finish after SIGTERM; a pod's usual grace."
    )
    linger_seconds: float = Field(
        2,
        ge=0,
        le=600,
        description="The port stays open at least so long after SIGTERM, to tell those who have not heard.",
    )

    @model_validator(mode="after")
    def _names_to_trust(self) -> Self:
        if not ALGORITHMS[self.chain.algorithm].collision_resistant:
            # The pool takes equal names for equal tokens: a crafted collision would serve another's KV.
            raise ValueError(
                f"chain.algorithm {self.chain.algorithm} is for routers only: it can be collided"
            )
        return self

    @model_validator(mode="after")
    def _model_for_torch(self) -> Self:
        if self.runner == "torch" and not self.model_directory:
            raise ValueError("the torch runner needs a model_directory")
        return self

    def prefill_start(self) -> PrefillCost:
        """Return the coefficients that the estimate of S starts from."""
        if self.prefill is not None:
            return self.prefill.cost()
        # Measured for 135M parameters on one thread of a server CPU.
        return self.echo.prefill.cost() if self.runner == "echo" else PrefillCost(0.04, 7e-4, 3e-8)
