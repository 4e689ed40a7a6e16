"""Asks a publisher for the messages it still holds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import zmq

from router.events.mailbox import Mailbox, open_socket

_NUMBER_BYTES = 8
_END = b"\xff" * _NUMBER_BYTES


class ReplayError(Exception):
    """The publisher did not answer, or not to the end."""


def read_message(frames: list[bytes]) -> tuple[int, bytes]:
    """Return number and payload, the last two frames of a message; ValueError where it has none."""
    if len(frames) < 2 or len(frames[-2]) != _NUMBER_BYTES:
        raise ValueError("a message ends with its number in 8 bytes, and its payload")
    return int.from_bytes(frames[-2], "big"), frames[-1]


async def replay(
    context: zmq.Context[zmq.Socket[bytes]], endpoint: str, start: int, silence_seconds: float
) -> AsyncGenerator[tuple[int, bytes], None]:
    """Yield numbers and payloads from `start` on, as far as they are still there.

    ReplayError where nothing comes for so long before the end, ZMQError for an endpoint that is none. Close
    it when it is left early.
    """
    # A publisher drops what its queue cannot hold: all is taken off it at once, as much as it remembers.
    socket = open_socket(context, zmq.SocketType.DEALER, 0)
    arrived = asyncio.Event()
    mailbox = Mailbox(socket, arrived)
    try:
        socket.connect(endpoint)
        socket.send_multipart([b"", start.to_bytes(_NUMBER_BYTES, "big")], zmq.NOBLOCK)
        while True:
            frames = mailbox.receive()
            if frames is None:
                arrived.clear()
                try:
                    async with asyncio.timeout(silence_seconds):
                        await arrived.wait()
                except TimeoutError:
                    raise ReplayError(f"no answer for {silence_seconds:g} s") from None
                continue
            try:
                number, payload = read_message(frames)
            except ValueError as error:
                raise ReplayError(f"an answer that is none: {error}") from error
            if frames[-2] == _END:
                return
            yield number, payload
    finally:
        mailbox.close()
