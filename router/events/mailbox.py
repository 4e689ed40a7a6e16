"""A ZMQ socket read within the event loop, without a future for each message: those cost more than events."""

from __future__ import annotations

import asyncio

import zmq

from router.events.decode import MAX_PAYLOAD_BYTES

# Beats find a machine that went away without a word.
_HEARTBEAT_MS = 5_000
_SILENCE_MS = 15_000
_RECONNECT_MS = 100
_LONGEST_RECONNECT_MS = 5_000


class Mailbox:
    """Owns a socket. `arrived` is set when there may be something to receive; several may share it."""

    def __init__(self, socket: zmq.Socket[bytes], arrived: asyncio.Event) -> None:
        self._socket = socket
        self._arrived = arrived
        self._descriptor = int(socket.get(zmq.FD))
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._descriptor, self._wake)

    def receive(self) -> list[bytes] | None:
        """Return the frames of the next message; None where there is none now."""
        try:
            return self._socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None

    def close(self) -> None:
        """Close the socket; what was not sent is lost."""
        self._loop.remove_reader(self._descriptor)
        self._socket.close(linger=0)

    def _wake(self) -> None:
        # Asking also takes back the descriptor's mark, which otherwise would call here again at once.
        if int(self._socket.get(zmq.EVENTS)) & zmq.POLLIN:
            self._arrived.set()


def open_socket(
    context: zmq.Context[zmq.Socket[bytes]], kind: zmq.SocketType, queue: int
) -> zmq.Socket[bytes]:
    """Return a socket that queues so many messages (0: any number), and reconnects for ever."""
    socket = context.socket(kind)
    socket.set(zmq.LINGER, 0)
    socket.set(zmq.RCVHWM, queue)
    socket.set(zmq.MAXMSGSIZE, MAX_PAYLOAD_BYTES)
    socket.set(zmq.IPV6, 1)
    socket.set(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
    socket.set(zmq.HEARTBEAT_TIMEOUT, _SILENCE_MS)
    socket.set(zmq.RECONNECT_IVL, _RECONNECT_MS)
    socket.set(zmq.RECONNECT_IVL_MAX, _LONGEST_RECONNECT_MS)
    return socket
