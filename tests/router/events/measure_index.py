"""Measures what naming the blocks of KV events costs: python -m tests.router.events.measure_index

CPU time and memory of one index, for events of many blocks and for events of one page, as SGLang's are.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path

import msgspec

from router.chain.namer import ChainNamer
from router.chain.tokenizer import ModelTokenizer
from router.events.decode import decode_batch
from router.events.index import ResidentIndex
from tests.tiny_tokenizer import write_tiny_tokenizer

_BLOCKS, _BLOCK_TOKENS, _ROUNDS = 20_000, 16, 3


def _payloads(blocks_an_event: int) -> list[bytes]:
    draw = random.Random(1)
    payloads, parent, hash_ = [], None, 0
    for start in range(0, _BLOCKS, blocks_an_event):
        hashes = list(range(hash_ + 1, hash_ + 1 + blocks_an_event))
        # A prompt of 256 blocks, then another.
        parent = None if start % 256 == 0 else hash_
        hash_ = hashes[-1]
        event = {
            "type": "BlockStored",
            "block_hashes": hashes,
            "parent_block_hash": parent,
            "token_ids": [draw.randrange(50_000) for _ in range(blocks_an_event * _BLOCK_TOKENS)],
            "block_size": _BLOCK_TOKENS,
            "medium": "GPU",
        }
        payloads.append(msgspec.msgpack.encode([0.0, [event], 0]))
    return payloads


def _take(index: ResidentIndex, payloads: list[bytes]) -> None:
    for payload in payloads:
        for event in decode_batch(payload).events:
            for _ in index.take(event):
                pass


def main() -> None:
    """Print the least of some rounds, for both kinds of events."""
    with tempfile.TemporaryDirectory() as scratch:
        tokenizer = ModelTokenizer.from_directory(write_tiny_tokenizer(Path(scratch) / "model"))
    namer = ChainNamer("sha256", "kvring", _BLOCK_TOKENS, tokenizer)

    def fresh() -> ResidentIndex:
        return ResidentIndex(namer, "m", lambda _: namer, 2 * _BLOCKS)

    for blocks in (64, 1):
        payloads = _payloads(blocks)
        least = float("inf")
        for _ in range(_ROUNDS):
            index, began = fresh(), time.process_time()
            _take(index, payloads)
            least = min(least, time.process_time() - began)
        tracemalloc.start()
        held = fresh()
        _take(held, payloads)
        size = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        sys.stdout.write(
            f"{blocks} blocks an event: {least / _BLOCKS * 1e6:.1f} us"
            f" and {size / held.block_count:.0f} bytes a block\n"
        )


if __name__ == "__main__":
    main()
