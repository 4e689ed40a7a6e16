"""Followers of a replica's KV events, scripted: what a router of anybody's does with its sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import zmq
import zmq.asyncio

END = 2**64 - 1


class Follower:
    """A SUB and, where there is a replay endpoint, a DEALER."""

    def __init__(self, context: zmq.asyncio.Context, source: dict[str, Any], topic: str = "") -> None:
        self._sub = context.socket(zmq.SUB)
        self._sub.setsockopt_string(zmq.SUBSCRIBE, topic)
        self._sub.connect(_reachable(source["endpoint"]))
        self._dealer = context.socket(zmq.DEALER)
        if source["replay_endpoint"]:
            self._dealer.connect(_reachable(source["replay_endpoint"]))

    async def next(self) -> tuple[int, list[dict[str, Any]]]:
        """Return the sequence and the events of the next batch."""
        async with asyncio.timeout(5):
            frames = await self._sub.recv_multipart()
        assert len(frames) == 3
        return _number(frames[1]), msgspec.msgpack.decode(frames[2])[1]

    async def until(self, kind: str) -> tuple[int, dict[str, Any]]:
        """Return the next event of a kind, with the sequence of its batch."""
        while True:
            sequence, events = await self.next()
            for event in events:
                if event["type"] == kind:
                    return sequence, event

    async def replay(self, first: int) -> list[tuple[int, list[dict[str, Any]]]]:
        """Ask for all batches from `first` on."""
        await self._dealer.send_multipart([b"", first.to_bytes(8, "big")])
        batches: list[tuple[int, list[dict[str, Any]]]] = []
        async with asyncio.timeout(5):
            while True:
                frames = await self._dealer.recv_multipart()
                assert len(frames) == 4
                assert frames[0] == b""
                if _number(frames[2]) == END:
                    assert frames[1] == frames[3] == b""
                    return batches
                batches.append((_number(frames[2]), msgspec.msgpack.decode(frames[3])[1]))

    async def send(self, frames: list[bytes]) -> None:
        """Send the replay endpoint what may be no question."""
        await self._dealer.send_multipart(frames)


@contextmanager
def follow(source: dict[str, Any], topic: str = "") -> Iterator[Follower]:
    """Follow a source, as /kv_event_sources has it of a rank."""
    context = zmq.asyncio.Context()
    try:
        follower = Follower(context, source, topic)
        yield follower
    finally:
        context.destroy(linger=0)


def _reachable(endpoint: str) -> str:
    return endpoint.replace("*", "127.0.0.1")


def _number(frame: bytes) -> int:
    return int.from_bytes(frame, "big")
