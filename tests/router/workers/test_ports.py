"""Ports that workers share: chosen once, held, and not taken from others."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest

from router.config import RouterConfig
from router.workers.ports import Ports


def _config(**changes: object) -> RouterConfig:
    return RouterConfig.load(flags={"listen": {"port": 0}, **changes})


def _shared(host: str, port: int) -> socket.socket:
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.bind((host, port))
    made.listen()
    return made


def test_free_ports_are_chosen_once_for_all() -> None:
    config = _config(control={"port": 0})
    with closing(Ports(config)) as ports:
        settled = ports.settled(config)
        assert settled.listen.port
        assert settled.control.port
        assert settled.listen.port != settled.control.port
        assert ports.settled(config) == settled
        for port in (settled.listen.port, settled.control.port):
            with _shared("127.0.0.1", port), _shared("127.0.0.1", port):
                pass


def test_told_ports_stay() -> None:
    with closing(Ports(_config())) as ports:
        other = RouterConfig.load(flags={"listen": {"port": 8123}})
        assert ports.settled(other) == other


def test_what_is_held_gets_no_connections() -> None:
    config = _config()
    with closing(Ports(config)) as ports:
        address = ("127.0.0.1", ports.settled(config).listen.port)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
        with _shared(*address) as listening:
            for _ in range(16):
                socket.create_connection(address).close()
                listening.accept()[0].close()


def test_a_port_that_somebody_shares_is_taken() -> None:
    with _shared("127.0.0.1", 0) as other, pytest.raises(OSError, match="in use"):
        Ports(_config(listen={"port": other.getsockname()[1]}))


def test_nothing_is_held_where_one_cannot_be_had() -> None:
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with _shared("127.0.0.1", 0) as other:
        config = _config(listen={"port": port}, control={"port": other.getsockname()[1]})
        with pytest.raises(OSError, match="in use"):
            Ports(config)
    with closing(socket.socket()) as again:
        again.bind(("127.0.0.1", port))
