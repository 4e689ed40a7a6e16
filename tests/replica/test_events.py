"""KV events: in vLLM's bytes, and telling at any time exactly what the pool holds."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from replica.block_pool import Block
from replica.events import Change, Changes, Cleared, EventLog, Removed, Stored, encode
from router.chain.chain import pack_tokens
from router.chain.keys import Keys
from router.chain.namer import ChainNamer
from tests.replica.drives import BLOCK, Drive

# What vLLM 0.33's own encoder made of the batch below.
GOLDEN = (
    "93cb41da4aeefad0000093de000aa474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657392cfccafa104bf2b"
    "9675cf8000000000000005b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f696473dc0020000102030405060708"
    "090a0b0c0d0e0f101112131415161718191a1b1c1d1e1faa626c6f636b5f73697a6510a76c6f72615f6964c0a66d656469756da3"
    "475055a96c6f72615f6e616d65c0aa65787472615f6b6579739291a974656e616e742d3432c0a967726f75705f6964780084a474"
    "797065ac426c6f636b52656d6f766564ac626c6f636b5f68617368657391cfccafa104bf2b9675a66d656469756da3475055a967"
    "726f75705f6964780081a474797065b0416c6c426c6f636b73436c656172656400"
)


def test_a_batch_is_what_vllm_would_send() -> None:
    names = [b"\xee" * 24 + number.to_bytes(8, "big") for number in (14749184346420909685, 2**63 + 5)]
    data = [pack_tokens(range(16)), pack_tokens(range(16, 32))]
    changes: list[Change] = [Stored(None, "tenant-42", names, data), Removed(names[:1]), Cleared()]
    payload = encode(Changes(0, 1764473835.25, changes), 16)
    ours, theirs = msgspec.msgpack.decode(payload), msgspec.msgpack.decode(bytes.fromhex(GOLDEN))
    assert ours == theirs
    assert [list(event) for event in ours[1]] == [list(event) for event in theirs[1]]


class Follower:
    """Reads payloads as another program would, naming the blocks anew from tokens, parents and salts."""

    def __init__(self, namer: ChainNamer) -> None:
        self._namer = namer
        self._names: dict[int, bytes] = {}
        self.batches = 0

    @property
    def names(self) -> set[bytes]:
        """What it believes is there."""
        return set(self._names.values())

    def put(self, changes: Changes) -> None:
        """Take a batch; it is the publisher, too."""
        assert changes.sequence == self.batches
        self.batches += 1
        _, events, rank = msgspec.msgpack.decode(encode(changes, BLOCK))
        assert rank == 0
        assert events
        for event in events:
            getattr(self, event.pop("type"))(**event)

    def BlockStored(self, **event: Any) -> None:
        """Blocks came."""
        hashes, salts = event["block_hashes"], event["extra_keys"]
        first = event["parent_block_hash"] is None
        parent = self._namer.root if first else self._names[event["parent_block_hash"]]
        salt = salts[0][0] if salts[0] else None
        assert not any(salts[1:])
        keys = {0: Keys("m", salt=salt).of_first_block()} if first else {}
        names = self._namer.name_blocks(parent, pack_tokens(event["token_ids"]), keys, 0 if first else 1)
        assert [int.from_bytes(name[-8:], "big") for name in names] == hashes
        assert not self._names.keys() & set(hashes)
        self._names.update(zip(hashes, names, strict=True))

    def BlockRemoved(self, **event: Any) -> None:
        """Blocks went."""
        for number in event["block_hashes"]:
            del self._names[number]

    def AllBlocksCleared(self) -> None:
        """All went."""
        self._names.clear()


def test_one_step_is_one_batch_and_a_run_of_blocks_one_event() -> None:
    batches: list[Changes] = []
    log = EventLog(type("Collector", (), {"put": staticmethod(batches.append)})(), clock=lambda: 5.0)
    drive = Drive(observer=log, max_batch_tokens=16)
    drive.add(range(30), max_tokens=4, salt="s")
    while drive.step() is not None:
        log.flush()
    # 4 blocks, then 3 with the rest of the prompt, then one that the answer fills.
    assert [[type(change) for change in batch.changes] for batch in batches] == [[Stored]] * 3
    stored = [change for batch in batches for change in batch.changes if isinstance(change, Stored)]
    assert [len(one.names) for one in stored] == [4, 3, 1]
    assert [one.salt for one in stored] == ["s", None, None]
    assert [one.parent for one in stored[1:]] == [stored[0].names[-1], stored[1].names[-1]]
    assert [batch.sequence for batch in batches] == [0, 1, 2]
    log.flush()
    assert len(batches) == 3


def test_a_block_that_stands_apart_begins_an_event_of_its_own() -> None:
    batches: list[Changes] = []
    log = EventLog(type("Collector", (), {"put": staticmethod(batches.append)})())
    chain = [bytes((at,)) * 32 for at in range(4)]
    for name, parent in ((chain[0], None), (chain[1], chain[0]), (chain[3], chain[2]), (chain[2], None)):
        block = Block(0)
        block.name, block.parent = name, parent
        log.stored(block)
    log.removed(chain[3])
    log.removed(chain[2])
    log.flush()
    names = [change.names for change in batches[0].changes if not isinstance(change, Cleared)]
    assert names == [chain[:2], [chain[3]], [chain[2]], [chain[3], chain[2]]]


def test_what_went_and_came_again_is_told_in_this_order() -> None:
    batches: list[Changes] = []
    log = EventLog(type("Collector", (), {"put": staticmethod(batches.append)})())
    first, second = Block(0), Block(1)
    first.name, second.name, second.parent = b"a" * 32, b"b" * 32, b"a" * 32
    log.stored(first)
    log.removed(b"c" * 32)
    log.stored(second)
    for _ in range(2):
        log.removed(second.name)
        log.stored(second)
    log.flush()
    kinds = [type(change) for change in batches[0].changes]
    assert kinds == [Stored, Removed, Stored, Removed, Stored, Removed, Stored]


class EventMachine(RuleBasedStateMachine):
    """Sequences come and go in a pool too small for them: preempted, aborted, prewarmed, cleared."""

    def __init__(self) -> None:
        super().__init__()
        self.follower = Follower(ChainNamer("sha256", "test", BLOCK, None))
        self.log = EventLog(self.follower)
        self.drive = Drive(block_count=7, max_running=3, max_batch_tokens=10, observer=self.log)

    @rule(
        tokens=st.lists(st.integers(0, 1), min_size=1, max_size=20),
        answer=st.integers(1, 8),
        salt=st.sampled_from((None, "a", "b")),
        prewarm=st.booleans(),
    )
    def add(self, tokens: list[int], answer: int, salt: str | None, prewarm: bool) -> None:
        # Few different blocks, so that prompts meet.
        tokens = [token for token in tokens for _ in range(BLOCK)][:20]
        self.drive.add(
            tokens[: len(tokens) - len(tokens) % BLOCK] if prewarm else tokens, answer, salt, prewarm
        )

    @rule(steps=st.integers(1, 4))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.drive.step()
            self.log.flush()

    @rule(pick=st.integers(0, 5))
    def abort(self, pick: int) -> None:
        ids = self.drive.scheduler.ids()
        if ids:
            self.drive.scheduler.drop(ids[pick % len(ids)])

    @rule()
    def reset(self) -> None:
        self.drive.pool.reset()
        self.log.flush()

    @invariant()
    def the_follower_knows_what_is_there(self) -> None:
        assert self.follower.names == set(self.drive.pool.named)


TestEventMachine = EventMachine.TestCase
TestEventMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
