"""Options of the runner with a model, apart from it, so that they can be read without torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from router.settings import Options


class TorchOptions(Options):
    """How the model runs. Every replica of a fleet should use the same, or its answers differ by rounding."""

    dtype: Literal["auto", "bf16", "fp32"] = Field(
        "auto",
        description="Number format of weights and KV. auto is bf16 on GPUs and on CPUs with AMX, where it is "
        "several times as fast at prefill, else fp32. bf16 takes half the memory; fp32 gives the same tokens "
        "whether a prefix was cached or not.",
    )
    device: str = Field(
        "cpu",
        pattern=r"^(cpu|cuda(:\d{1,2})?)$",
        description="Where the model runs. Every machine has a CPU.",
    )
    threads: int = Field(
        1,
        ge=1,
        le=256,
        description="CPU threads that compute. One, since several replicas share a small machine and more "
        "threads than cores slow each other down many times over.",
    )
    block_count: int = Field(
        1024,
        ge=1,
        le=10_000_000,
        description="KV blocks to allocate. 1024 blocks of 16 tokens take 0.4 GB for a model of 135M "
        "parameters in bf16, and hold eight conversations of 2,000 tokens.",
    )
    context_tokens: int | None = Field(
        None,
        ge=1,
        description="Longest sequence taken, in tokens. By default what the model was trained for, at most "
        "as much as all blocks hold.",
    )
