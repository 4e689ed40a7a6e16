"""Attention over the paged KV cache: decodes together, prefill chunks one by one, mixed in one batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from replica.batch import Batch, Work
from replica.model.config import LlamaConfig
from replica.model.kv_cache import KvCache

_SHORT_BLOCKS = 16
"""Decodes of up to this many blocks share one call: below it, a call costs more than its padding."""


class Attention(Protocol):
    """What the decoder asks of attention: told the batch once, then called once in each layer."""

    def plan(self, batch: Batch) -> None:
        """Prepare for the tokens of `batch`, in the order of its works."""

    def write_kv(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Keep the keys and values of the batch's tokens, both [tokens, kv_heads, head_size]."""

    def forward(self, layer: int, queries: Tensor) -> Tensor:
        """Attend from `queries` [tokens, heads, head_size] up to each token's own place; same shape back."""


@dataclass(frozen=True, slots=True)
class _Decodes:
    """Works of one token each, padded to one length. `mask` is [works, 1, 1, length], added to the scores."""

    rows: Tensor
    tables: Tensor
    mask: Tensor


@dataclass(frozen=True, slots=True)
class _Chunk:
    """One work of several tokens: rows first .. last-1 of the batch. `mask` is [tokens, length], or None if
    the chunk starts its sequence, and is then causal as it stands."""

    first: int
    last: int
    table: Tensor
    length: int
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class _Plan:
    slots: Tensor
    decodes: tuple[_Decodes, ...]
    chunks: tuple[_Chunk, ...]


class PagedAttention:
    """Attention that gathers the blocks it needs and leaves the arithmetic to torch; runs on CPU and CUDA."""

    def __init__(self, config: LlamaConfig, cache: KvCache, dtype: torch.dtype, device: torch.device) -> None:
        self._config = config
        self._cache = cache
        self._dtype = dtype
        self._device = device
        self._plan: _Plan | None = None

    def plan(self, batch: Batch) -> None:
        """Work out slots, tables and masks; raises ValueError for a block table that cannot be right."""
        slots: list[int] = []
        unused: list[int] = []
        chunks: list[_Chunk] = []
        decodes: dict[int, list[tuple[int, Work]]] = {}
        for work in batch.works:
            self._check(work)
            first = len(slots)
            slots += self._slots(work.block_ids, work.start, work.start + len(work.token_ids))
            unused += self._unused_slots(work)
            if len(work.token_ids) > 1:
                chunks.append(self._chunk(work, first))
            else:
                decodes.setdefault(self._size_class(work), []).append((first, work))
        if unused:
            self._cache.clear(self._integers(unused))
        self._plan = _Plan(
            self._integers(slots), tuple(self._decodes(group) for group in decodes.values()), tuple(chunks)
        )

    def write_kv(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """See Attention."""
        assert self._plan is not None
        self._cache.write(layer, self._plan.slots, keys, values)

    def forward(self, layer: int, queries: Tensor) -> Tensor:
        """See Attention."""
        assert self._plan is not None
        out = torch.empty_like(queries)
        for decodes in self._plan.decodes:
            out.index_copy_(0, decodes.rows, self._attend_decodes(layer, queries, decodes))
        for chunk in self._plan.chunks:
            out[chunk.first : chunk.last] = self._attend_chunk(
                layer, queries[chunk.first : chunk.last], chunk
            )
        return out

    def _attend_decodes(self, layer: int, queries: Tensor, decodes: _Decodes) -> Tensor:
        config = self._config
        works = decodes.tables.shape[0]
        keys, values = self._cache.gather(layer, decodes.tables.flatten())
        shape = (works, -1, config.kv_heads, config.head_size)
        # The heads that share a key head are laid out as its queries, so that keys need not be repeated.
        grouped = queries.index_select(0, decodes.rows).view(
            works, config.kv_heads, config.groups, config.head_size
        )
        attended = scaled_dot_product_attention(
            grouped,
            keys.view(shape).transpose(1, 2),
            values.view(shape).transpose(1, 2),
            attn_mask=decodes.mask,
        )
        return attended.reshape(works, config.heads, config.head_size)

    def _attend_chunk(self, layer: int, queries: Tensor, chunk: _Chunk) -> Tensor:
        config = self._config
        tokens = queries.shape[0]
        gathered = self._cache.gather(layer, chunk.table)
        keys, values = (
            # [kv_heads, groups, length, head_size], the groups sharing memory.
            tensor.flatten(0, 1)[: chunk.length]
            .permute(1, 0, 2)
            .unsqueeze(1)
            .expand(-1, config.groups, -1, -1)
            for tensor in gathered
        )
        attended = scaled_dot_product_attention(
            queries.view(tokens, config.kv_heads, config.groups, config.head_size).permute(1, 2, 0, 3),
            keys,
            values,
            attn_mask=chunk.mask,
            is_causal=chunk.mask is None,
        )
        return attended.permute(2, 0, 1, 3).reshape(tokens, config.heads, config.head_size)

    def _check(self, work: Work) -> None:
        blocks = self._blocks(work)
        if not work.token_ids or work.start < 0:
            raise ValueError(f"request {work.request_id}: work without tokens, or at a negative position")
        if len(work.block_ids) < blocks:
            raise ValueError(
                f"request {work.request_id}: {len(work.block_ids)} blocks cannot hold "
                f"{work.start + len(work.token_ids)} tokens"
            )
        if not all(0 <= block < self._cache.block_count for block in work.block_ids[:blocks]):
            raise ValueError(
                f"request {work.request_id}: a block id outside 0 .. {self._cache.block_count - 1}"
            )

    def _blocks(self, work: Work) -> int:
        return -(-(work.start + len(work.token_ids)) // self._cache.block_tokens)

    def _slots(self, block_ids: Sequence[int], start: int, end: int) -> list[int]:
        size = self._cache.block_tokens
        return [block_ids[position // size] * size + position % size for position in range(start, end)]

    def _unused_slots(self, work: Work) -> list[int]:
        # The rest of a newly begun last block is masked when read, but a leftover NaN or infinity there would
        # survive the mask (0 * NaN): it is zeroed as the block's first token arrives.
        size = self._cache.block_tokens
        end = work.start + len(work.token_ids)
        begun = (end - 1) // size * size
        return self._slots(work.block_ids, end, begun + size) if work.start <= begun else []

    def _size_class(self, work: Work) -> int:
        # Powers of two of length: no decode is padded to more than twice its own, whatever its neighbours.
        return (max(self._blocks(work), _SHORT_BLOCKS) - 1).bit_length()

    def _decodes(self, group: list[tuple[int, Work]]) -> _Decodes:
        size = self._cache.block_tokens
        width = max(self._blocks(work) for _, work in group)
        padding = [self._cache.padding_block] * width
        tables = [(list(work.block_ids[: self._blocks(work)]) + padding)[:width] for _, work in group]
        lengths = self._integers([work.start + 1 for _, work in group])
        hidden = torch.arange(width * size, device=self._device) >= lengths[:, None]
        mask = torch.zeros(hidden.shape, dtype=self._dtype, device=self._device)
        mask.masked_fill_(hidden, float("-inf"))
        return _Decodes(
            rows=self._integers([row for row, _ in group]),
            tables=torch.tensor(tables, dtype=torch.long, device=self._device),
            mask=mask[:, None, None, :],
        )

    def _chunk(self, work: Work, first: int) -> _Chunk:
        tokens = len(work.token_ids)
        length = work.start + tokens
        mask = None
        if work.start:
            positions = torch.arange(work.start, length, device=self._device)
            hidden = torch.arange(length, device=self._device) > positions[:, None]
            mask = torch.zeros(hidden.shape, dtype=self._dtype, device=self._device)
            mask.masked_fill_(hidden, float("-inf"))
        table = self._integers(list(work.block_ids[: self._blocks(work)]))
        return _Chunk(first, first + tokens, table, length, mask)

    def _integers(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=self._device)
