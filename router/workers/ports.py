"""Ports that several processes share: chosen and held before the first of them starts."""

from __future__ import annotations

import socket
from contextlib import ExitStack

from router.config import RouterConfig


class Ports:
    """Holds the ports of a router's options by sockets that never listen: they get no connections."""

    def __init__(self, config: RouterConfig) -> None:
        """OSError where another program has one."""
        self._held = ExitStack()
        with ExitStack() as opened:
            self._listen = _hold(config.listen.host, config.listen.port, opened)
            self._control = (
                None
                if config.control.port is None
                else _hold(config.control.host, config.control.port, opened)
            )
            self._held = opened.pop_all()

    def settled(self, config: RouterConfig) -> RouterConfig:
        """Return the options with the ports that were chosen where they ask for any."""
        listen, control = config.listen, config.control
        if listen.port == 0:
            listen = listen.model_copy(update={"port": self._listen})
        if control.port == 0:
            control = control.model_copy(update={"port": self._control})
        return config.model_copy(update={"listen": listen, "control": control})

    def close(self) -> None:
        """Let the ports go."""
        self._held.close()


def _hold(host: str, port: int, held: ExitStack) -> int:
    """Hold a port at all addresses of a host; return its number."""
    for family, _, _, _, address in socket.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    ):
        # Alone first: a port that other processes share would be shared with them unawares.
        with _socket(family) as alone:
            alone.bind((address[0], port, *address[2:]))
            port = alone.getsockname()[1]
        shared = held.enter_context(_socket(family))
        shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        shared.bind((address[0], port, *address[2:]))
    return port


def _socket(family: int) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    # What a program before left behind is no reason to fail.
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    return made
