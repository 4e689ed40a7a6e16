"""Hand-over: which prefixes are hot in the pool of a replica that goes, given out once each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp2
from time import monotonic

from replica.block_pool import Block, BlockPool
from router.chain.chain import unpack_tokens
from router.wire.errors import ApiError

DEFAULT_PREFIXES = 64
MAX_PREFIXES = 4096
DEFAULT_TOKENS = 65_536
# What one answer holds at most: some 6 MB of JSON.
MAX_TOKENS = 1 << 20
# A prefix not found for so long counts for half: people take some minutes for a turn.
_HALF_LIFE_SECONDS = 600.0


@dataclass(slots=True)
class HotPrefix:
    """A run of blocks from a prompt's first up to `tail`. `spot` is the deepest of them that was found.

    It was found `hits` times, last at `hit_at` (monotonic seconds).
    """

    spot: Block
    tail: Block
    hits: int
    hit_at: float

    def heat(self, now: float) -> float:
        """What computing it again would be worth: hits times tokens (in blocks), halved with age."""
        age = max(0.0, now - self.hit_at)
        return self.hits * self.tail.depth * exp2(-age / _HALF_LIFE_SECONDS)


@dataclass(frozen=True, slots=True)
class Handover:
    """An answer: the prefixes in their wire form, hottest first, and how many were left out."""

    prefixes: list[dict[str, object]]
    left: int

    def to_json(self) -> dict[str, object]:
        """Return the wire form."""
        return {"prefixes": self.prefixes, "left": self.left}


class HandoverDesk:
    """Gives out each hot prefix once, so that routers that all ask share the work. Engine's thread alone."""

    def __init__(self) -> None:
        self._given: set[bytes] = set()
        self.given_count = 0

    def give(self, pool: BlockPool, limit: int, tokens: int) -> Handover:
        """Return up to `limit` prefixes of `tokens` tokens together; what is too long stays for another."""
        now = monotonic()
        named = pool.named
        hot = [prefix for prefix in hot_prefixes(named) if prefix.spot.name not in self._given]
        hot.sort(key=lambda prefix: prefix.heat(now), reverse=True)
        given: list[dict[str, object]] = []
        for prefix in hot:
            length = prefix.tail.depth * pool.block_tokens
            if len(given) == limit:
                break
            if length > tokens:
                continue
            tokens -= length
            assert prefix.spot.name is not None
            self._given.add(prefix.spot.name)
            given.append(_wire(prefix, named))
        self.given_count += len(given)
        return Handover(given, len(hot) - len(given))


def hot_prefixes(named: Mapping[bytes, Block]) -> list[HotPrefix]:
    """Return the prefixes that were found at least once, each as deep as it goes. O(names).

    `named` holds parents before children. A conversation is found at another block with each turn: the
    spots on its way make one prefix, with the hits of all. A prefix found more than once at one block is
    shared by what parts there, and stands for itself.
    """
    children: dict[bytes, list[Block]] = {}
    # The deepest spot at or above each block, and how many spots lie next below a spot.
    above: dict[bytes, bytes | None] = {}
    passed: dict[bytes, HotPrefix] = {}
    below: dict[bytes, int] = {}
    for name, block in named.items():
        spot = None
        if block.parent is not None:
            children.setdefault(block.parent, []).append(block)
            spot = above.get(block.parent)
        if not block.hits:
            above[name] = spot
            continue
        above[name] = name
        passed[name] = prefix = HotPrefix(block, block, block.hits, block.hit_at)
        if spot is not None:
            below[spot] = below.get(spot, 0) + 1
            if passed[spot].spot.hits == 1:
                prefix.hits += passed[spot].hits
    hot = []
    for name, prefix in passed.items():
        if below.get(name):
            if prefix.spot.hits > 1:
                hot.append(prefix)
            continue
        prefix.tail = _newest_tail(prefix.spot, children)
        hot.append(prefix)
    return hot


def read_bounds(limit: str | None, tokens: str | None) -> tuple[int, int]:
    """Read the bounds of a hand-over from a query; ApiError 400 if they are no numbers of at least 1."""
    return (
        min(_bound("limit", limit, DEFAULT_PREFIXES), MAX_PREFIXES),
        min(_bound("tokens", tokens, DEFAULT_TOKENS), MAX_TOKENS),
    )


def _bound(name: str, text: str | None, default: int) -> int:
    if text is None:
        return default
    # The check of the length keeps int() from work that grows with its square.
    if not (text.isascii() and text.isdigit() and len(text) <= 18 and int(text) > 0):
        raise ApiError(400, f"'{name}' must be an integer of at least 1", param=name)
    return int(text)


def _newest_tail(spot: Block, children: Mapping[bytes, list[Block]]) -> Block:
    """Follow what came behind a spot: the newest turn of its one conversation, but no one of many askers."""
    tail = spot
    once = spot.hits == 1
    while tail.name is not None and (next := children.get(tail.name)) and (once or len(next) == 1):
        tail = next[-1]
    return tail


def _wire(prefix: HotPrefix, named: Mapping[bytes, Block]) -> dict[str, object]:
    blocks = [prefix.tail]
    while (parent := blocks[-1].parent) is not None:
        blocks.append(named[parent])
    blocks.reverse()
    tokens = unpack_tokens(b"".join(block.data for block in blocks))
    return {"tokens": tokens, "salt": blocks[0].salt, "hits": prefix.hits}
