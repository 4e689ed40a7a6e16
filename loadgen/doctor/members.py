"""Finds the members of a configured fleet, by the sources that a router would follow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from router.config import RouterConfig
from router.fleet.members import Member, MemberSource
from router.fleet.sources.dns import DnsMembers
from router.fleet.sources.endpoint_slices import EndpointSliceMembers
from router.fleet.sources.leases import LeaseMembers
from router.shared.connection import Connection
from router.shared.leases import Leases

_LIST_SECONDS = 5.0


async def members_of(
    config: RouterConfig, redis: Connection | None
) -> tuple[Sequence[Member], dict[str, str]]:
    """Return all members, and why a source told none, by its kind; takes some seconds at most."""
    members = [Member(address.url, address.name) for address in config.fleet.replicas]
    silent: dict[str, str] = {}
    for kind, told in await asyncio.gather(
        _told("dns", lambda: DnsMembers(config.fleet.dns), bool(config.fleet.dns.host)),
        _told(
            "kubernetes",
            lambda: EndpointSliceMembers(config.fleet.kubernetes),
            bool(config.fleet.kubernetes.service),
        ),
        _told(
            "leases",
            lambda: _leases(config, redis),
            config.fleet.leases.enabled and redis is not None,
        ),
    ):
        if isinstance(told, str):
            silent[kind] = told
        else:
            # Two sources may know the same one; who lists one twice himself should hear of it.
            known = {member.url for member in members}
            members += [member for member in told if member.url not in known]
    return members, silent


def _leases(config: RouterConfig, redis: Connection | None) -> MemberSource:
    if redis is None:
        raise ValueError("leases need redis.url")
    return LeaseMembers(config.fleet.leases, Leases(redis, config.redis.group))


async def _told(
    kind: str, build: Callable[[], MemberSource], wanted: bool
) -> tuple[str, Sequence[Member] | str]:
    """Return what a source tells first, or why it tells nothing."""
    if not wanted:
        return kind, ()
    try:
        async with asyncio.timeout(_LIST_SECONDS):
            watch = build().watch()
            return kind, await anext(watch)
    except TimeoutError:
        return kind, f"it told nothing within {_LIST_SECONDS:g} seconds"
    except (OSError, ValueError, StopAsyncIteration) as error:
        return kind, str(error) or type(error).__name__
