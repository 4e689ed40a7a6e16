"""A live router's fleet without its sockets: replicas are told what a poll would have brought."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp

from router.chain.chain import ChainIdentity
from router.chain.digest import Digest
from router.chain.namers import Namers
from router.chain.options import ChainOptions
from router.config import FleetOptions
from router.fleet.fleet import Fleet
from router.fleet.members import Member
from router.fleet.replica import Replica
from router.observe.metrics import RouterMetrics
from router.wire.report import LoadReport, PrefillCost, ReplicaState


@dataclass(frozen=True)
class QuietFleet:
    """The fleet, and its replicas by name. Nothing in it waits for anything."""

    fleet: Fleet
    identity: ChainIdentity
    replicas: dict[str, Replica]

    def tell(self, name: str, load: LoadReport, now: float) -> None:
        """Let a replica report its load, as of `now`."""
        self.replicas[name].load.reported(load, covers_until=now, now=now)

    def tell_digest(self, name: str, held: Iterable[bytes], made_at: float) -> None:
        """Let a replica tell which names it holds."""
        replica = self.replicas[name]
        replica.take_digest(Digest.of(held, self.identity.fingerprint, replica.epoch), made_at)


@asynccontextmanager
async def quiet_fleet(
    names: Sequence[str], model: str, identity: ChainIdentity, cost: PrefillCost | None = None
) -> AsyncIterator[QuietFleet]:
    """Give a fleet whose replicas are all ready and idle at time 0, with nothing in their caches.

    What is done inside must not await: polls would then begin, and find nobody.
    """
    members = _Listed([Member(f"http://127.0.0.1:9/{name}", name) for name in names])
    async with aiohttp.ClientSession() as session:
        # Only polls, which never begin, would name anything.
        namers = Namers(ChainOptions(), {})
        fleet = Fleet(FleetOptions(), [members], session, namers, RouterMetrics(), lambda: 0.0)
        await fleet.start()
        replicas = {replica.name: replica for replica in fleet.replicas}
        for name, replica in replicas.items():
            replica.take_state(_state(name, model, identity, cost or PrefillCost()))
            replica.health.probe_passed(0.0)
        try:
            yield QuietFleet(fleet, identity, replicas)
        finally:
            await fleet.stop()


class _Listed:
    """Members that are known from the start."""

    kind = "listed"
    up = True

    def __init__(self, listed: Sequence[Member]) -> None:
        self._listed = listed

    async def watch(self) -> AsyncIterator[Sequence[Member]]:
        yield self._listed


def _state(name: str, model: str, identity: ChainIdentity, cost: PrefillCost) -> ReplicaState:
    return ReplicaState(
        name=name,
        uid=name,
        cache_epoch=0,
        models=(model,),
        chain=identity,
        load=LoadReport(0.0, 0, 0, 0.0, 0),
        prefill=cost,
        context_tokens=131_072,
        block_count=100_000,
        free_blocks=100_000,
    )
