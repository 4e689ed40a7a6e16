"""Naming: each replica gets a name of its own, and one that is there twice is used once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from router.fleet.health import Standing
from router.fleet.replica import Replica

log = logging.getLogger("kvring.fleet")


def settle_twins(replicas: Collection[Replica]) -> None:
    """Find who is a member by two addresses, as pods have with two families: one of them is used."""
    seen: set[str] = set()
    for replica in sorted(replicas, key=_standing):
        uid = replica.state.uid if replica.state else ""
        replica.twin = bool(uid) and uid in seen
        seen.add(uid)


def _standing(replica: Replica) -> tuple[bool, bool]:
    """Put first who can be sent to, and of these who is: twins are never usable, so standing tells."""
    return replica.health.standing is not Standing.READY or replica.member.draining, replica.twin


def settle_names(replicas: Collection[Replica], renamed: Callable[[str], None]) -> None:
    """Give every replica its name; `renamed` is told the name that one had before.

    Of two that want one name, as when a pod has moved and the old one is still listed, the usable one
    gets it and the other goes by its address.
    """
    taken: set[str] = set()
    for replica in sorted(replicas, key=lambda one: (one.twin, one.configured_name is None, not one.usable)):
        name = replica.wanted_name
        if name in taken:
            name = replica.anonymous_name
            if replica.name != name and not replica.twin:
                log.warning("two replicas are called %s; one is now %s", replica.wanted_name, name)
        if replica.name and replica.name != name:
            renamed(replica.name)
        replica.name = name
        if name:
            taken.add(name)
