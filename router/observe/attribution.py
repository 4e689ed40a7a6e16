"""Attribution: why each prompt token that was not served from cache was not. Pure; sums are exact.

A token gets one cause, the first of these that holds. They go from what nothing could have saved, over what
the decision got wrong or gave up, to what no decision could have had:

    partial_block         behind the last block that can hit: blocks hit whole, one token is computed
    stale_digest          the chosen replica's digest said that it held this; it did not
    routed_by_load        another routable replica held it: the request went elsewhere
    routed_by_membership  who held it left, died, could not be reached, or restarted
    evicted               the chosen replica had it once, or somebody did, and nobody holds it now
    unknown               somebody computed it, and what became of it nobody can tell
    key_mismatch          computed only under other keys: another salt, or another adapter
    cold                  never computed before

So `routed_by_load` goes before `evicted`: what the chosen replica once evicted is not why the request missed
while another held it at that moment. Only what no replica held counts against the size of the caches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Cause(StrEnum):
    """Why a prompt token was computed, in order of precedence."""

    PARTIAL_BLOCK = "partial_block"
    STALE_DIGEST = "stale_digest"
    ROUTED_BY_LOAD = "routed_by_load"
    ROUTED_BY_MEMBERSHIP = "routed_by_membership"
    EVICTED = "evicted"
    UNKNOWN = "unknown"
    KEY_MISMATCH = "key_mismatch"
    COLD = "cold"


class Evidence(NamedTuple):
    """What is known of one served prompt. Depths are leading tokens of it, as of the decision.

    `hit_tokens` were served from cache; `block_tokens` is the replica's block. `told` is what the chosen
    replica's digest promised (0 without one), `held_elsewhere` the deepest prefix that another routable
    replica held, `held_by_departed` the deepest of one that is gone, was out of reach, or has lost its cache.
    `evicted` is the deepest prefix that the chosen replica had and evicted, None where nobody can tell.
    `seen` is the deepest prefix that anybody had computed, `seen_other_keys` the same under other keys.
    """

    prompt_tokens: int
    block_tokens: int
    hit_tokens: int
    told: int = 0
    held_elsewhere: int = 0
    held_by_departed: int = 0
    evicted: int | None = None
    seen: int = 0
    seen_other_keys: int = 0


@dataclass(frozen=True, slots=True)
class Misses:
    """Uncached tokens by cause."""

    partial_block: int = 0
    stale_digest: int = 0
    routed_by_load: int = 0
    routed_by_membership: int = 0
    evicted: int = 0
    unknown: int = 0
    key_mismatch: int = 0
    cold: int = 0

    def __iter__(self) -> Iterator[tuple[Cause, int]]:
        """Yield every cause with its tokens, in order of precedence."""
        for cause in Cause:
            yield cause, getattr(self, cause)

    @property
    def total(self) -> int:
        """All uncached tokens."""
        return sum(tokens for _, tokens in self)

    def to_json(self) -> dict[str, int]:
        """Return the causes that have tokens, in order of precedence."""
        told = {}
        # One by one, as each request needs it twice: a loop over the causes takes six times as long.
        if self.partial_block:
            told["partial_block"] = self.partial_block
        if self.stale_digest:
            told["stale_digest"] = self.stale_digest
        if self.routed_by_load:
            told["routed_by_load"] = self.routed_by_load
        if self.routed_by_membership:
            told["routed_by_membership"] = self.routed_by_membership
        if self.evicted:
            told["evicted"] = self.evicted
        if self.unknown:
            told["unknown"] = self.unknown
        if self.key_mismatch:
            told["key_mismatch"] = self.key_mismatch
        if self.cold:
            told["cold"] = self.cold
        return told


def attribute(evidence: Evidence) -> Misses:
    """Split the tokens that were not hit; the sum is `prompt_tokens - hit_tokens` (0 where more were hit)."""
    length = evidence.prompt_tokens
    hit = min(max(evidence.hit_tokens, 0), length)
    limit = max(hit, (length - 1) // evidence.block_tokens * evidence.block_tokens)
    # What others computed and nobody holds was evicted as well, if evictions can be told at all.
    tellable = evidence.evicted is not None
    vanished = max(evidence.evicted or 0, evidence.seen)
    reached, spans = hit, []
    for depth in (
        evidence.told,
        evidence.held_elsewhere,
        evidence.held_by_departed,
        vanished,
        evidence.seen_other_keys,
    ):
        # Each cause gets what lies behind those before it, and nothing behind the limit.
        deeper = depth if depth < limit else limit
        if deeper > reached:
            spans.append(deeper - reached)
            reached = deeper
        else:
            spans.append(0)
    stale, by_load, by_membership, gone, other_keys = spans
    return Misses(
        partial_block=length - limit,
        stale_digest=stale,
        routed_by_load=by_load,
        routed_by_membership=by_membership,
        evicted=gone if tellable else 0,
        unknown=0 if tellable else gone,
        key_mismatch=other_keys,
        cold=limit - reached,
    )
