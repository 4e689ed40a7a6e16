"""Addresses of KV events: ports by rank, and wildcards replaced by the replica's own host."""

from __future__ import annotations

import re

from router.config import EventOptions
from router.engines.engine import EventSource

_MOST_RANKS = 256
_LONGEST_TOPIC = 200
_TCP = re.compile(r"tcp://(\[[0-9A-Fa-f:.%]*\]|[A-Za-z0-9._*-]+|::):([0-9]{1,5})")
_WILDCARDS = frozenset({"*", "0.0.0.0", "[::]", "::", "[]"})


def address(host: str, port: int) -> str:
    """Return the ZMQ address of a port; ValueError where there is no such port."""
    if not 1 <= port <= 65_535:
        raise ValueError(f"KV events come from a port of 1 to 65535, not {port}")
    bare = host.strip("[]")
    return f"tcp://[{bare}]:{port}" if ":" in bare else f"tcp://{bare}:{port}"


def resolved(endpoint: object, host: str) -> str:
    """Return `endpoint` with a wildcard host replaced by `host`; empty where nobody else can reach it."""
    match = _TCP.fullmatch(endpoint) if isinstance(endpoint, str) and len(endpoint) <= 300 else None
    if match is None or not 1 <= int(match[2]) <= 65_535:
        return ""
    return address(host if match[1] in _WILDCARDS else match[1], int(match[2]))


def source(endpoint: str, replay_endpoint: str, topic: object) -> EventSource:
    """Return a source; a topic that makes no sense is ValueError, as nothing would ever arrive under it."""
    if topic is None:
        topic = ""
    if not isinstance(topic, str) or len(topic) > _LONGEST_TOPIC:
        raise ValueError(f"a topic of KV events is text of at most {_LONGEST_TOPIC} characters")
    return EventSource(endpoint, replay_endpoint, topic)


def by_ports(host: str, port: int, replay_port: int, topic: object, ranks: int) -> tuple[EventSource, ...]:
    """Return a source a rank; rank r publishes at `port` + r and replays at `replay_port` + r, 0 for none."""
    if not 1 <= ranks <= _MOST_RANKS:
        raise ValueError(f"KV events come from 1 to {_MOST_RANKS} ranks, not {ranks}")
    return tuple(
        source(
            address(host, port + rank),
            address(host, replay_port + rank) if replay_port else "",
            topic,
        )
        for rank in range(ranks)
    )


def by_options(host: str, options: EventOptions, ranks: int) -> tuple[EventSource, ...]:
    """Return where the configuration says that replicas publish that do not tell; none unless asked for."""
    if options.source != "replica":
        return ()
    return by_ports(host, options.port, options.replay_port, options.topic, min(max(ranks, 1), _MOST_RANKS))
