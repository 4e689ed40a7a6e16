"""What KV events cost the engine's thread, and what a hand-over costs: microseconds, printed.

    python -m tests.replica.event_cost

Prompts of 4,096 tokens go through the scheduler with a runner that computes nothing, in steps of 512, into a
pool that evicts as many blocks as it stores. Best of five, in CPU time of this thread.
"""

from __future__ import annotations

import sys
import tracemalloc
from time import process_time, thread_time

from replica.batch import Batch
from replica.event_options import EventOptions
from replica.events import Changes, EventLog, encode
from replica.handover import HandoverDesk
from replica.publisher import ZmqPublisher
from tests.replica.drives import Drive

BLOCK_TOKENS = 16
PROMPT_TOKENS = 4096
PROMPTS = 40
BLOCKS = PROMPTS * PROMPT_TOKENS // BLOCK_TOKENS


class NoRunner:
    """Computes nothing."""

    def run(self, batch: Batch) -> list[int | None]:
        """Compute a batch."""
        return [1 if work.sample else None for work in batch.works]


class Nowhere:
    """A publisher that keeps what it gets."""

    def __init__(self) -> None:
        self.batches: list[Changes] = []

    def put(self, changes: Changes) -> None:
        """Take changes."""
        self.batches.append(changes)


def drive_with(log: EventLog | None, block_count: int = 4096) -> float:
    """Run the prompts; return microseconds of this thread for each block."""
    drive = Drive(block_count, 8, 512, True, BLOCK_TOKENS, NoRunner(), log)
    started = thread_time()
    for prompt in range(PROMPTS):
        drive.add(range(prompt * PROMPT_TOKENS, (prompt + 1) * PROMPT_TOKENS), max_tokens=1)
        while drive.step() is not None:
            if log is not None:
                log.flush()
    return (thread_time() - started) / BLOCKS * 1e6


def sent() -> float:
    """The same, with a publisher's thread that encodes and sends beside it."""
    publisher = ZmqPublisher(EventOptions(endpoint="tcp://127.0.0.1:*"), BLOCK_TOKENS)
    publisher.start()
    try:
        return drive_with(EventLog(publisher))
    finally:
        publisher.close()


def encoding() -> float:
    """Return microseconds for each block that the publisher's thread encodes."""
    nowhere = Nowhere()
    drive_with(EventLog(nowhere))
    started = process_time()
    for changes in nowhere.batches:
        encode(changes, BLOCK_TOKENS)
    return (process_time() - started) / BLOCKS * 1e6


def handover(block_count: int) -> tuple[float, float]:
    """Return the milliseconds of a hand-over of 64 prefixes, and bytes a named block."""
    tracemalloc.start()
    drive = Drive(block_count, 8, 4096, True, BLOCK_TOKENS, NoRunner())
    empty, _ = tracemalloc.get_traced_memory()
    prompts = block_count * BLOCK_TOKENS // PROMPT_TOKENS - 1
    for prompt in range(prompts):
        drive.run(range(prompt * PROMPT_TOKENS, (prompt + 1) * PROMPT_TOKENS), max_tokens=1)
    drive.sequences.clear()
    full, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    for prompt in range(0, prompts, 4):
        drive.run(range(prompt * PROMPT_TOKENS, (prompt + 1) * PROMPT_TOKENS), max_tokens=1)
    started = thread_time()
    HandoverDesk().give(drive.pool, 64, 1 << 20)
    return (thread_time() - started) * 1e3, (full - empty) / drive.pool.name_count


def main() -> None:
    """Print the figures."""
    rows = {
        "events off": min(drive_with(None) for _ in range(5)),
        "events gathered": min(drive_with(EventLog(Nowhere())) for _ in range(5)),
        "events sent": min(sent() for _ in range(5)),
        "encoding, in the publisher's thread": min(encoding() for _ in range(5)),
    }
    for name, microseconds in rows.items():
        sys.stdout.write(f"{name:40}{microseconds:8.2f} us a block\n")
    for block_count in (4096, 65_536):
        milliseconds, size = handover(block_count)
        name = f"hand-over out of {block_count} blocks"
        sys.stdout.write(f"{name:40}{milliseconds:8.1f} ms, {size:.0f} bytes a block\n")


if __name__ == "__main__":
    main()
