"""The fleet view: a frozen picture of the replicas that may be ranked, and of their load.

Kept in columns, one number a replica, so that a policy may weigh hundreds at once; `replicas` gives the same
picture replica by replica, for policies that would rather read it so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from router.chain.digest import Digest
from router.placement.ask import Ask
from router.placement.digests import Caches, DigestTable
from router.placement.ring import Ring
from router.wire.report import PrefillCost

Floats = npt.NDArray[np.float64]
Tokens = npt.NDArray[np.int64]

# Odd, its bits spread evenly (2**64 over the golden ratio).
_MIX = np.uint64(0x9E3779B97F4A7C15)


class Column(IntEnum):
    """The rows of a load table; the first nine are a LoadView's fields in order, the last three a cost's."""

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
    def of_column(cls, column: Sequence[float]) -> LoadView:
        """Read one replica's column of a load table."""
        work, reported_at, own = column[: Column.IN_FLIGHT]
        in_flight, tokens, dispatched, running, waiting = map(int, column[Column.IN_FLIGHT : Column.KV_USAGE])
        usage = column[Column.KV_USAGE]
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


@dataclass(frozen=True, eq=False)
class Roster:
    """Who may serve an ask: made when that changes, and shared by the views until then.

    `ring` is over all members, and `members` counts those that serve the model, dead ones included: what is
    a fair share must not change when one of them dies. `slots` are where caches know the replicas.
    """

    names: tuple[str, ...]
    epochs: tuple[str, ...]
    slots: Tokens
    ring: Ring
    members: int

    @cached_property
    def places(self) -> dict[str, int]:
        """Where each name stands in `names`."""
        return {name: place for place, name in enumerate(self.names)}

    @cached_property
    def hashes(self) -> npt.NDArray[np.uint64]:
        """A hash of each name."""
        return np.array([xxh3_64_intdigest(name.encode()) for name in self.names], dtype=np.uint64)


@dataclass(frozen=True, eq=False)
class FleetView:
    """The replicas that may serve an ask, in no particular order, with their load and what their caches hold.

    `table` has a row for each Column and a column for each replica. Nobody may write to any of it.
    """

    roster: Roster
    table: Floats
    caches: Caches
    # The last look-up: several ask for the same of one view.
    _looked_up: list[tuple[Ask, Tokens]] = field(default_factory=list, init=False, repr=False)

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
            slots=np.arange(len(replicas), dtype=np.int64),
            ring=ring,
            members=members or len(replicas),
        )
        table = np.array(rows, dtype=np.float64).reshape(len(replicas), len(Column)).T.copy()
        return cls(roster, table, caches)

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
    def replicas(self) -> Sequence[ReplicaView]:
        """The same, replica by replica."""
        return tuple(
            ReplicaView(
                name,
                epoch,
                LoadView.of_column(column),
                PrefillCost(*column[Column.BASE_SECONDS :]),
            )
            for name, epoch, column in zip(self.names, self.epochs, self.table.T.tolist(), strict=True)
        )

    def tie_breaks(self, key: bytes) -> npt.NDArray[np.uint64]:
        """Return each replica's weight for `key`, a fair order that all routers share: least goes first."""
        mixed = self.roster.hashes ^ np.uint64(xxh3_64_intdigest(key))
        mixed *= _MIX
        mixed ^= mixed >> np.uint64(32)
        mixed *= _MIX
        return mixed

    def wait_seconds(self, now: float, others_share: float = 0.0) -> Floats:
        """Return, for each replica, how long a request sent now would wait for its prefill to begin.

        Routers that see the same reports choose alike: `others_share` of what this one sent since is added
        for each of the others. How many there are shows in what replicas run and what of it is this one's.
        """
        table = self.table
        own = table[Column.OWN_WORK_SECONDS]
        if others_share:
            in_flight, _, _, running, waiting = np.add.reduce(
                table[Column.IN_FLIGHT : Column.KV_USAGE], axis=1
            ).tolist()
            others = (running + waiting) / max(1.0, in_flight) - 1
            if others > 0:
                own = own * (1 + others_share * others)
        wait: Floats = table[Column.WORK_SECONDS] + own
        wait += table[Column.REPORTED_AT]
        wait -= now
        return np.maximum(wait, 0.0, out=wait)

    def prefill_seconds(self, prompt_tokens: int, hit_tokens: Floats | Tokens | float) -> Floats:
        """Return S(prompt_tokens, hit_tokens) of each replica; hits are one number, or one or more a replica.

        Of more, the last axis goes by replica.
        """
        table = self.table
        uncached = np.maximum(1.0, np.float64(prompt_tokens) - hit_tokens)
        seconds: Floats = prompt_tokens - uncached * 0.5
        seconds = seconds * table[Column.PER_TOKEN_CONTEXT_SECONDS]
        seconds += table[Column.PER_TOKEN_SECONDS]
        seconds *= uncached
        seconds += table[Column.BASE_SECONDS]
        return seconds

    def held_tokens(self, ask: Ask, least_told_at: float = -np.inf) -> Tokens:
        """Return how many leading tokens of the prompt each replica holds; -1 where that is not known.

        By what the replicas last told, their digests; older than `least_told_at` is not known. In a
        simulation it may be the exact truth.
        """
        if ask.chain is None:
            return np.full(len(self), -1, dtype=np.int64)
        slots = self.roster.slots
        if self._looked_up and self._looked_up[0][0] is ask:
            tokens = self._looked_up[0][1]
        else:
            tokens = self.caches.held_blocks(ask.chain, ask.marks, slots) * ask.chain.block_tokens
            self._looked_up[:] = [(ask, tokens)]
        known = tokens >= 0
        known &= self.caches.told_at(slots) >= least_told_at
        return np.where(known, tokens, -1)
