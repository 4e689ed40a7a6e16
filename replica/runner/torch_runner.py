"""The runner with a language model: loads a model directory, computes batches, samples tokens."""

from __future__ import annotations

import threading
from pathlib import Path

import torch

from replica.batch import Batch
from replica.model.attention import PagedAttention
from replica.model.config import read_config
from replica.model.kv_cache import KvCache
from replica.model.llama import Llama
from replica.model.rope import Rope
from replica.model.sampling import choose
from replica.model.weights import load_weights
from replica.runner.torch_options import TorchOptions

_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


class TorchRunner:
    """Implements replica.batch.Runner with a Llama model directory (config.json and safetensors)."""

    def __init__(self, directory: Path, options: TorchOptions, block_tokens: int = 16) -> None:
        """Load the model; raises UnsupportedModel for a directory that this decoder cannot run.

        `block_tokens` is what one KV block holds; 16 is what the router names blocks by, too.
        """
        self._options = options
        self._block_tokens = block_tokens
        self._configured_thread = 0
        device = torch.device(options.device)
        dtype = _fastest(device) if options.dtype == "auto" else _DTYPES[options.dtype]
        config = read_config(directory)
        room = options.block_count * block_tokens
        self._context_tokens = min(options.context_tokens or room, config.context_tokens, room)
        self._use_threads()
        self.cache = KvCache(config, options.block_count, block_tokens, dtype, device)
        self._model: Llama | None = Llama(
            config,
            load_weights(directory, config, dtype, device),
            Rope(config, self._context_tokens, dtype, device),
            PagedAttention(config, self.cache, dtype, device),
        )

    @property
    def block_tokens(self) -> int:
        """Tokens a KV block holds."""
        return self._block_tokens

    @property
    def block_count(self) -> int:
        """KV blocks there is room for."""
        return self._options.block_count

    @property
    def context_tokens(self) -> int:
        """Longest sequence taken, prompt and answer together."""
        return self._context_tokens

    @torch.inference_mode()
    def logits(self, batch: Batch) -> torch.Tensor:
        """Compute the batch; logits as float32 [works that sample, vocabulary], in the order of the works.

        Raises ValueError for a batch that cannot be right: nothing of it is computed then.
        """
        if self._model is None:
            raise RuntimeError("the runner is closed")
        for work in batch.works:
            if work.start + len(work.token_ids) > self._context_tokens:
                raise ValueError(
                    f"request {work.request_id} exceeds the {self._context_tokens} tokens of context"
                )
        self._use_threads()
        return self._model.forward(batch).float()

    def run(self, batch: Batch) -> list[int | None]:
        """See replica.batch.Runner."""
        if not batch.works:
            return []
        logits = self.logits(batch)
        chosen = iter(choose(logits, [work for work in batch.works if work.sample]))
        return [next(chosen) if work.sample else None for work in batch.works]

    def close(self) -> None:
        """Let go of weights and cache; the runner cannot be used afterwards."""
        self._model = None

    def _use_threads(self) -> None:
        # OpenMP keeps its thread count per calling thread, and the engine's thread is not the one that loads.
        if self._configured_thread != threading.get_ident():
            torch.set_num_threads(self._options.threads)
            self._configured_thread = threading.get_ident()


def _fastest(device: torch.device) -> torch.dtype:
    """Return bf16 where the hardware multiplies it natively, fp32 where that is faster at prefill."""
    if device.type == "cuda" or torch.cpu.get_capabilities().get("amx_bf16"):
        return torch.bfloat16
    return torch.float32
