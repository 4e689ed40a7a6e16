"""The fleet view: a frozen picture of the replicas that may be ranked, and of their load.

Kept in columns, one number a replica. `table` gives the same picture as an array, and `replicas` replica by
replica, for policies that would rather read it so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from math import inf

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from router.chain.digest import Digest
from router.placement.ask import Ask
from router.placement.digests import Caches, DigestTable
from router.placement.ring import Ring
from router.placement.roster import Roster
from router.wire.report import PrefillCost

Floats = npt.NDArray[np.float64]
Tokens = npt.NDArray[np.int64]

# A sequence for each Column, with a number for each replica.
Columns = Sequence[Sequence[float]]

# Odd, its bits spread evenly (2**64 over the golden ratio).
_MIX = 0x9E3779B97F4A7C15
_BITS = 0xFFFFFFFFFFFFFFFF


class Column(IntEnum):
    """The columns of a view: first a LoadView's fields in order, then a PrefillCost's."""

    WORK_SECONDS = 0
    REPORTED_AT = 1
    OWN_WORK_SECONDS = 2
    IN_FLIGHT = 3
    IN_FLIGHT_TOKENS = 4
    DISPATCHED = 5
    RUNNING = 6
    WAITING = 7
    KV_USAGE = 8
    BASE_SECONDS = 9
    PER_TOKEN_SECONDS = 10
    PER_TOKEN_CONTEXT_SECONDS = 11


@dataclass(frozen=True, slots=True)
class LoadView:
    """One replica's load: what it last reported, and what it was sent since, as far as known.

    `work_seconds` of uncached prefill were queued at `reported_at`; `own_work_seconds` were dispatched by
    this router, and by those that share their load with it, and are not in that report. `in_flight` counts
    the leases of all these, `in_flight_tokens` their prompts; `dispatched` is all that this one ever sent.
    `kv_usage` is the share of KV blocks that requests hold.
    """

    work_seconds: float = 0.0
    reported_at: float = 0.0
    own_work_seconds: float = 0.0
    in_flight: int = 0
    in_flight_tokens: int = 0
    dispatched: int = 0
    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0

    @classmethod
    def of(cls, numbers: Sequence[float]) -> LoadView:
        """Read one replica's number of each Column."""
        work, reported_at, own = numbers[: Column.IN_FLIGHT]
        in_flight, tokens, dispatched, running, waiting = map(
            int, numbers[Column.IN_FLIGHT : Column.KV_USAGE]
        )
        usage = numbers[Column.KV_USAGE]
        return cls(work, reported_at, own, in_flight, tokens, dispatched, running, waiting, usage)

    @property
    def known_requests(self) -> int:
        """How many requests it has, as far as known: told by routers or by itself, whichever is more.

        Where routers do not share their load, each knows its own leases alone, and of the rest only what the
        replica reported.
        """
        return max(self.in_flight, self.running + self.waiting)

    def wait_seconds(self, now: float) -> float:
        """Return how long a request sent now would wait for its prefill to begin."""
        return max(0.0, self.work_seconds + self.own_work_seconds - (now - self.reported_at))


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """One replica as a policy sees it. `epoch` names the life of its cache: credit never outlives it."""

    name: str
    epoch: str
    load: LoadView = field(default_factory=LoadView)
    prefill: PrefillCost = field(default_factory=PrefillCost)


class FleetView:
    """The replicas that may serve an ask, in no particular order, with their load and what their caches hold.

    `columns` has a number for each replica in each Column, `table` is the same as an array. Nobody may write
    to any of it.
    """

    def __init__(
        self,
        roster: Roster,
        columns: Columns,
        caches: Caches,
        now: float = inf,
    ) -> None:
        """`now` is when this is so: what was reported later, or never, is taken as of then."""
        self.roster = roster
        self.columns = columns
        self.caches = caches
        self._now = now
        # The last look-up: several ask for the same of one view.
        self._looked_up: tuple[Ask | None, Sequence[int] | None, Sequence[float]] = (None, None, ())

    @classmethod
    def of(
        cls,
        replicas: Sequence[ReplicaView],
        ring: Ring,
        members: int = 0,
        digests: dict[str, tuple[Digest, float]] | None = None,
    ) -> FleetView:
        """Build a view from rows; `digests` by name, with the time each was made."""
        caches = DigestTable()
        caches.reserve(len(replicas))
        rows = []
        for slot, replica in enumerate(replicas):
            load, cost = replica.load, replica.prefill
            rows.append([float(getattr(load, name)) for name in LoadView.__slots__])
            rows[-1] += [float(getattr(cost, name)) for name in PrefillCost.__slots__]
            if digests and replica.name in digests:
                digest, told_at = digests[replica.name]
                if digest.epoch == replica.epoch:
                    caches.put(slot, digest, told_at)
        roster = Roster(
            names=tuple(replica.name for replica in replicas),
            epochs=tuple(replica.epoch for replica in replicas),
            slots=tuple(range(len(replicas))),
            ring=ring,
            members=members or len(replicas),
        )
        return cls(roster, tuple(zip(*rows, strict=True)) or ((),) * len(Column), caches)

    @classmethod
    def of_table(cls, roster: Roster, table: Floats, caches: Caches) -> FleetView:
        """Build a view from an array: a row for each Column, a column for each replica."""
        view = cls(roster, table.tolist(), caches)
        view.table = table
        return view

    def __len__(self) -> int:
        return len(self.roster.names)

    @property
    def names(self) -> tuple[str, ...]:
        """The replicas' stable names."""
        return self.roster.names

    @property
    def epochs(self) -> tuple[str, ...]:
        """The lives of their caches."""
        return self.roster.epochs

    @property
    def ring(self) -> Ring:
        """The ring over all members."""
        return self.roster.ring

    @property
    def members(self) -> int:
        """How many serve the model, dead ones included."""
        return self.roster.members

    @property
    def places(self) -> dict[str, int]:
        """Where each name stands in `names`."""
        return self.roster.places

    @cached_property
    def table(self) -> Floats:
        """The columns as an array: a row for each Column, a column for each replica."""
        table = np.array(self.columns, dtype=np.float64).reshape(len(Column), len(self))
        np.minimum(table[Column.REPORTED_AT], self._now, out=table[Column.REPORTED_AT])
        # What one policy did to it, the next must not see.
        table.setflags(write=False)
        return table

    @cached_property
    def replicas(self) -> Sequence[ReplicaView]:
        """The same, replica by replica."""
        return tuple(
            ReplicaView(name, epoch, LoadView.of(numbers), PrefillCost(*numbers[Column.BASE_SECONDS :]))
            for name, epoch, numbers in zip(self.names, self.epochs, self.table.T.tolist(), strict=True)
        )

    def tie_break(self, key: bytes, place: int) -> int:
        """Return a replica's weight for a key, a fair order that all routers share: least goes first."""
        mixed = (self.roster.hashes[place] ^ xxh3_64_intdigest(key)) * _MIX & _BITS
        return (mixed ^ mixed >> 32) * _MIX & _BITS

    def others_factor(self, others_share: float) -> float:
        """Return by how much this router's own work stands for that of all.

        Routers that see the same reports choose alike: `others_share` of what this one sent since is added
        for each of the others. How many there are shows in what replicas run and what of it is this one's.
        """
        if not others_share:
            return 1.0
        _, _, _, in_flight, _, _, running, waiting, *_ = self.columns
        others = (sum(running) + sum(waiting)) / max(1.0, sum(in_flight)) - 1
        return 1 + others_share * others if others > 0 else 1.0

    def wait(self, place: int, now: float, factor: float = 1.0) -> float:
        """Return how long a request sent now would wait at one replica for its prefill to begin.

        What this router sent since the last report counts `factor` times.
        """
        work, reported_at, own, *_ = self.columns
        at = min(reported_at[place], self._now)
        return max(0.0, work[place] + own[place] * factor + at - now)

    def waits(self, now: float, factor: float = 1.0) -> list[float]:
        """Return `wait` of each replica."""
        work, reported_at, own, *_ = self.columns
        latest = self._now
        return [
            wait if (wait := queued + sent * factor + (at if at < latest else latest) - now) > 0.0 else 0.0
            for queued, sent, at in zip(work, own, reported_at, strict=True)
        ]

    def prefill(self, place: int, prompt_tokens: int, hit_tokens: int) -> float:
        """Return S(prompt_tokens, hit_tokens) of one replica."""
        *_, base, per_token, per_context = self.columns
        uncached = max(1, prompt_tokens - hit_tokens)
        token = (prompt_tokens - uncached * 0.5) * per_context[place] + per_token[place]
        return token * uncached + base[place]

    def prefills(self, prompt_tokens: int, hit_tokens: Sequence[int]) -> list[float]:
        """Return `prefill` of each replica, for one hit a replica."""
        *_, base, per_token, per_context = self.columns
        count = len(base)
        if count and all(costs.count(costs[0]) == count for costs in (per_token, per_context, base)):
            # Equal replicas, as most are: once for each hit.
            seconds = {hit: self.prefill(0, prompt_tokens, hit) for hit in set(hit_tokens)}
            return list(map(seconds.__getitem__, hit_tokens))
        longest = prompt_tokens - 1
        return [
            ((prompt_tokens - (u := prompt_tokens - hit if hit < longest else 1) * 0.5) * context + token) * u
            + fixed
            for hit, fixed, token, context in zip(hit_tokens, base, per_token, per_context, strict=True)
        ]

    def least_prefill(self, prompt_tokens: int, hit_tokens: int) -> float:
        """Return what no replica's `prefill` is less than; what they all take, where they are equals."""
        *_, base, per_token, per_context = self.columns
        uncached = max(1, prompt_tokens - hit_tokens)
        token = (prompt_tokens - uncached * 0.5) * min(per_context) + min(per_token)
        return token * uncached + min(base)

    def told_tokens(self, ask: Ask, least_told_at: float = -inf) -> Sequence[int] | None:
        """Return how many leading tokens of the prompt each replica holds; -1 where that is not known.

        By what the replicas last told, their digests; older than `least_told_at` is not known. In a
        simulation it may be the exact truth. None where nothing is known of anybody.
        """
        chain = ask.chain
        if chain is None:
            return None
        asked, tokens, told_at = self._looked_up
        if asked is not ask:
            blocks = self.caches.held_blocks(chain, ask.marks, self.roster.slots)
            if blocks is not None:
                block = chain.block_tokens
                tokens = [count * block if count > 0 else count for count in blocks]
                told_at = self.caches.told_at(self.roster.slots)
            else:
                tokens = None
            self._looked_up = ask, tokens, told_at
        if tokens is None or min(told_at) >= least_told_at:
            return tokens
        return [held if at >= least_told_at else -1 for held, at in zip(tokens, told_at, strict=True)]

    def wait_seconds(self, now: float) -> Floats:
        """Return `waits` as an array."""
        return np.array(self.waits(now), dtype=np.float64)

    def prefill_seconds(self, prompt_tokens: int, hit_tokens: Floats | Tokens | float) -> Floats:
        """Return S(prompt_tokens, hit_tokens) of each replica; hits are one number, or one a replica."""
        table = self.table
        uncached = np.maximum(1.0, np.float64(prompt_tokens) - hit_tokens)
        seconds: Floats = prompt_tokens - uncached * 0.5
        seconds = seconds * table[Column.PER_TOKEN_CONTEXT_SECONDS]
        seconds += table[Column.PER_TOKEN_SECONDS]
        seconds *= uncached
        seconds += table[Column.BASE_SECONDS]
        return seconds

    def held_tokens(self, ask: Ask, least_told_at: float = -inf) -> Tokens:
        """Return `told_tokens` as an array: -1 all over where nothing is known."""
        told = self.told_tokens(ask, least_told_at)
        return np.full(len(self), -1, dtype=np.int64) if told is None else np.array(told, dtype=np.int64)
