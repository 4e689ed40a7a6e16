"""Options that bound time and size."""

from __future__ import annotations

from pydantic import Field

from router.settings import Options


class LimitOptions(Options):
    """Bounds on time and size."""

    body_bytes: int = Field(
        32 * 1024 * 1024,
        ge=1024,
        le=1024**3,
        description="Largest request; long chats with pictures take MBs.",
    )
    body_seconds: float = Field(60, gt=0, le=3600, description="A client that sends slower is cut off.")
    tokenised_bytes: int = Field(
        4 * 1024 * 1024,
        ge=0,
        le=1024**3,
        description="Larger bodies are chained by bytes: tokenising them costs seconds.",
    )
    connect_seconds: float = Field(2, gt=0, le=60, description="A live replica accepts at once.")
    first_byte_seconds: float = Field(
        600, gt=0, le=86_400, description="Longest queue and prefill; the default of OpenAI's clients."
    )
    idle_seconds: float = Field(
        120,
        gt=0,
        le=86_400,
        description="Longest silence within an answer. There is no limit on its whole length.",
    )
    write_seconds: float = Field(
        120,
        gt=0,
        le=86_400,
        description="A client that takes nothing for so long is cut off: it holds a lease.",
    )
    header_bytes: int = Field(
        32 * 1024, ge=1024, le=1024**2, description="A request's headers; cookies and tokens stay below."
    )
    header_seconds: float = Field(
        30, gt=0, le=3600, description="From a request's first byte to the end of its headers."
    )
    idle_client_seconds: float = Field(
        75,
        gt=0,
        le=86_400,
        description="A client's connection idle longer is closed: above what load balancers keep theirs.",
    )
    attempts: int = Field(3, ge=1, le=16, description="Replicas tried for one request, the first included.")
    retry_share: float = Field(
        0.1,
        ge=0,
        le=1,
        description="Requests sent on after a 429 or 503, by all that come: overload must not feed itself.",
    )
    retry_burst: int = Field(
        10, ge=0, le=100_000, description="How many may be sent on at once beyond that share."
    )
    continue_streams: bool = Field(
        True,
        description="A stream whose replica dies goes on with another, where that can be exact.",
    )
    in_flight: int = Field(
        4096, ge=1, le=1_000_000, description="Requests held at once; more are answered 503 at once."
    )
    replica_requests: int = Field(
        2048,
        ge=1,
        le=1_000_000,
        description="On one replica at once, of all routers as far as known: twice the most that engines run,"
        " for those that tell nothing of their queue.",
    )
    replica_waiting: int = Field(
        256,
        ge=0,
        le=1_000_000,
        description="Of these, queued behind those that run; as many as engines commonly run at once.",
    )
    longest_wait_seconds: float = Field(
        30,
        gt=0,
        le=86_400,
        description="Predicted wait at a replica beyond which others are asked, and who comes is answered 429"
        " at once: with its own prefill, an answer begins before load balancers give up at 60.",
    )
    idle_connection_seconds: float = Field(
        55, gt=0, le=3600, description="Pooled connections idle longer are closed, before a replica does so."
    )
    no_replica_wait_seconds: float = Field(
        5,
        ge=0,
        le=600,
        description="How long a request waits for a replica where none is usable: a rollout's gap.",
    )
    waiting_requests: int = Field(
        1024, ge=0, le=1_000_000, description="Requests that wait so at once; more are answered 503."
    )
    released_per_replica: int = Field(
        8,
        ge=1,
        le=10_000,
        description="Of those that waited, on one replica before their first byte or second: no stampede.",
    )
    drain_seconds: float = Field(
        30, ge=0, le=86_400, description="After SIGTERM, how long running answers may take to end."
    )
    drain_notice_seconds: float = Field(
        2, ge=0, le=600, description="After SIGTERM, how long clients may still come: they learn of it late."
    )
    tokenizer_threads: int = Field(2, ge=1, le=64, description="Tokenising releases the GIL; a core each.")
