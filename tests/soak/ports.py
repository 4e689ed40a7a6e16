"""Ports that are still free after nobody has listened there for a while."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_BELOW = 12_000


def steady_ports(count: int) -> list[int]:
    """Return `count` free ports of 127.0.0.1, none of which the system gives to a connection by chance."""
    lowest = int(_RANGE.read_text().split()[0])
    found: list[int] = []
    for port in random.sample(range(max(1024, lowest - _BELOW), lowest), 50 * count):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise OSError("no ports are free")
