"""Decisions: what was known and chosen for each of the last requests. Keeps numbers and names, never text."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from router.observe.outcome import Outcome
from router.observe.sightings import Sight
from router.placement.ask import Ask, Choice, Ranking

# A large fleet's ranking is kept to this place; failover never walks further.
KEPT_CHOICES = 16


@dataclass(frozen=True, slots=True)
class Record:
    """One decision. `at` is the time of day in seconds; `outcome` is None where nothing was dispatched.

    `blocks` of `block_tokens` are the prompt's chain (0 where it could not be named); `choices` are the first
    of `replicas` in the ranking.
    """

    at: float
    policy: str
    model: str
    tier: str
    prompt_tokens: int
    preamble_tokens: int
    blocks: int
    block_tokens: int
    sight: Sight
    replicas: int
    choices: Sequence[Choice]
    outcome: Outcome | None = None


def record_of(
    ask: Ask,
    tier: str,
    sight: Sight,
    ranking: Ranking,
    policy: str,
    at: float,
    *,
    outcome: Outcome | None = None,
    keep: int = KEPT_CHOICES,
) -> Record:
    """Make the record of a ranking, to its first `keep` places."""
    chain = ask.chain
    return Record(
        at=at,
        policy=policy,
        model=ask.model,
        tier=tier,
        prompt_tokens=ask.prompt_tokens,
        preamble_tokens=chain.preamble_tokens if chain else 0,
        blocks=len(chain.names) if chain else 0,
        block_tokens=chain.block_tokens if chain else 0,
        sight=sight,
        replicas=len(ranking),
        choices=ranking[:keep],
        outcome=outcome,
    )


class Decisions:
    """The records of the last `limit` requests, by request id; of two with one id the newer is found."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._order: deque[_Kept] = deque()
        self._by_id: dict[str, _Kept] = {}

    def __len__(self) -> int:
        return len(self._order)

    def keep(self, request_id: str, record: Record) -> None:
        """Keep a record, forgetting the oldest beyond the limit; a request's second replaces its first."""
        known = self._by_id.get(request_id)
        if known is not None and record.outcome is not None and known.record.outcome is record.outcome:
            known.record = record
            return
        kept = _Kept(request_id, record)
        self._order.append(kept)
        self._by_id[request_id] = kept
        if len(self._order) > self._limit:
            gone = self._order.popleft()
            if self._by_id[gone.request_id] is gone:
                del self._by_id[gone.request_id]

    def latest(self, count: int) -> list[tuple[str, Record]]:
        """Return the last `count` records with their requests' ids, the newest first."""
        return [(kept.request_id, kept.record) for kept in islice(reversed(self._order), count)]

    def find(self, request_id: str) -> Record | None:
        """Return the record of a request, None where it is not among the last."""
        kept = self._by_id.get(request_id)
        return None if kept is None else kept.record


@dataclass(slots=True, eq=False)
class _Kept:
    request_id: str
    record: Record
