"""Parts that only some options ask for: each is imported just where they do, as most routers start without.

What reaches Redis and name servers takes a fifth of the time of all imports.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from router.config import RouterConfig
from router.fleet.fleet import Fleet
from router.fleet.members import MemberSource
from router.observe.metrics import RouterMetrics

if TYPE_CHECKING:
    from router.shared.connection import Connection
    from router.shared.loads import SharedLoad


def redis_connection(config: RouterConfig) -> Connection | None:
    """Return a connection to Redis, where one is told."""
    redis = config.redis
    if not redis.url.get_secret_value():
        return None
    from router.shared.connection import Connection

    return Connection(redis.url, redis.timeout_seconds, redis.longest_pause_seconds)


def shared_load(
    config: RouterConfig, redis: Connection | None, fleet: Fleet, metrics: RouterMetrics
) -> SharedLoad | None:
    """Return what tells other routers of this one's load, where that is wanted; Redis has metrics anyway."""
    if redis is None:
        return None
    from router.shared.loads import SharedLoad
    from router.shared.metrics import SharedMetrics

    shared = SharedLoad(redis, config.redis, fleet, monotonic) if config.redis.share_load else None
    metrics.registry.register(SharedMetrics(redis, shared))
    return shared


def member_sources(config: RouterConfig, redis: Connection | None) -> list[MemberSource]:
    """Return the sources of members beside the options themselves."""
    sources: list[MemberSource] = []
    if config.fleet.dns.host:
        from router.fleet.sources.dns import DnsMembers

        sources.append(DnsMembers(config.fleet.dns))
    if config.fleet.kubernetes.service:
        from router.fleet.sources.endpoint_slices import EndpointSliceMembers

        sources.append(EndpointSliceMembers(config.fleet.kubernetes))
    if config.fleet.leases.enabled and redis is not None:
        from router.fleet.sources.leases import LeaseMembers
        from router.shared.leases import Leases

        sources.append(LeaseMembers(config.fleet.leases, Leases(redis, config.redis.group)))
    return sources
