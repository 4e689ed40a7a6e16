"""The memory of the KV blocks: keys and values of every layer, addressed by block id and slot."""

from __future__ import annotations

import torch
from torch import Tensor

from replica.model.config import LlamaConfig


class KvCache:
    """`block_count` blocks of `block_tokens` tokens in each layer, and a block of zeros that fills up tables.

    A slot is the place of one token: block id * block_tokens + its place in the block.
    """

    def __init__(
        self,
        config: LlamaConfig,
        block_count: int,
        block_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.block_count = block_count
        self.block_tokens = block_tokens
        self.padding_block = block_count
        shape = (config.layers, (block_count + 1) * block_tokens, config.kv_heads, config.head_size)
        # Zeros, since the system then hands out each page only when it is first written.
        self._keys = torch.zeros(shape, dtype=dtype, device=device)
        self._values = torch.zeros(shape, dtype=dtype, device=device)

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Put keys and values, both [tokens, kv_heads, head_size], into `slots` [tokens]."""
        self._keys[layer].index_copy_(0, slots, keys)
        self._values[layer].index_copy_(0, slots, values)

    def clear(self, slots: Tensor) -> None:
        """Zero `slots` in all layers."""
        self._keys.index_fill_(1, slots, 0.0)
        self._values.index_fill_(1, slots, 0.0)

    def gather(self, layer: int, blocks: Tensor) -> tuple[Tensor, Tensor]:
        """Copies of the keys and values in `blocks` [n], each [n, block_tokens, kv_heads, head_size]."""
        shape = (-1, self.block_tokens, *self._keys.shape[2:])
        keys = self._keys[layer].view(shape).index_select(0, blocks)
        return keys, self._values[layer].view(shape).index_select(0, blocks)

    def fill(self, block_id: int, value: float) -> None:
        """Overwrite one block in all layers: tests put NaN into freed blocks to catch any read of them."""
        first = block_id * self.block_tokens
        self._keys[:, first : first + self.block_tokens] = value
        self._values[:, first : first + self.block_tokens] = value
