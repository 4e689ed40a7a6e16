"""A scripted engine that publishes KV events over real ZMQ sockets, and replays them."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from time import time
from typing import Any

import msgspec
import zmq


@dataclass(frozen=True, slots=True)
class Place:
    """Where to follow it."""

    endpoint: str
    replay_endpoint: str = ""
    topic: str = ""


def stored(
    tokens: Sequence[int], hashes: Sequence[int], parent: int | None = None, **fields: Any
) -> dict[str, Any]:
    """Return an event as vLLM sends it; `fields` replace its own."""
    return {
        "type": "BlockStored",
        "block_hashes": list(hashes),
        "parent_block_hash": parent,
        "token_ids": list(tokens),
        "block_size": len(tokens) // len(hashes) if hashes else 16,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": None,
        "group_idx": 0,
        **fields,
    }


def removed(hashes: Sequence[int], medium: str | None = "GPU") -> dict[str, Any]:
    """Return an event as vLLM sends it."""
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": medium, "group_idx": 0}


CLEARED = {"type": "AllBlocksCleared"}


def prompt(seed: int, blocks: int, block_tokens: int = 16) -> tuple[list[int], list[int]]:
    """Return a prompt's tokens and the hashes that an engine gives its blocks."""
    draw = random.Random(seed)
    tokens = [draw.randrange(150_000) for _ in range(blocks * block_tokens)]
    return tokens, [draw.getrandbits(64) for _ in range(blocks)]


class Publisher:
    """One engine. `kept` is how many batches it replays; 0 for none, and no replay socket."""

    def __init__(
        self,
        kept: int = 10_000,
        topic: str = "",
        *,
        topic_in_replay: bool = True,
        at: Place | None = None,
        connect_to: str = "",
    ) -> None:
        """Bind anew, or `at` where another one was; or connect to who binds at `connect_to`."""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.SocketType.PUB)
        self._topic = topic.encode()
        self._kept = kept
        self._topic_in_replay = topic_in_replay
        self.buffer: list[tuple[int, bytes]] = []
        self.next = 0
        self.replays = 0
        # Numbers that the next replay loses on its way, as a full queue does.
        self.lost_in_replay: set[int] = set()
        if connect_to:
            self._socket.connect(connect_to)
        else:
            self._socket.bind(at.endpoint if at else "tcp://127.0.0.1:*")
        self._router: zmq.Socket[bytes] | None = None
        self._closing = threading.Event()
        self._lock = threading.Lock()
        if kept:
            self._router = self._context.socket(zmq.SocketType.ROUTER)
            self._router.bind(at.replay_endpoint if at else "tcp://127.0.0.1:*")
            self._thread = threading.Thread(target=self._serve, args=(self._router,), daemon=True)
        self.place = Place(_bound(self._socket), _bound(self._router) if self._router else "", topic=topic)
        if self._router:
            self._thread.start()

    def publish(self, *events: Any, lost: bool = False) -> int:
        """Publish a batch, or lose it on its way; return its number."""
        return self.publish_raw(msgspec.msgpack.encode([time(), list(events), 0]), lost=lost)

    def publish_raw(self, payload: bytes, *, lost: bool = False) -> int:
        """Publish a payload as it is."""
        number = self.next
        self.next += 1
        with self._lock:
            self.buffer.append((number, payload))
            del self.buffer[: max(0, len(self.buffer) - self._kept)]
        if not lost:
            self._socket.send_multipart([self._topic, number.to_bytes(8, "big"), payload])
        return number

    def publish_again(self, number: int) -> None:
        """Publish a batch a second time."""
        payload = dict(self.buffer)[number]
        self._socket.send_multipart([self._topic, number.to_bytes(8, "big"), payload])

    def close(self) -> None:
        """End it, as a process ends."""
        self._closing.set()
        if self._router:
            self._thread.join()
        self._context.destroy(linger=0)

    def _serve(self, router: zmq.Socket[bytes]) -> None:
        while not self._closing.is_set():
            if not router.poll(20):
                continue
            client, empty, start = router.recv_multipart()
            assert empty == b""
            topic = [self._topic] if self._topic_in_replay else []
            with self._lock:
                buffered = list(self.buffer)
            self.replays += 1
            lost, self.lost_in_replay = self.lost_in_replay, set()
            for number, payload in buffered:
                if number >= int.from_bytes(start, "big") and number not in lost:
                    router.send_multipart([client, b"", *topic, number.to_bytes(8, "big"), payload])
            router.send_multipart([client, b"", *(topic and [b""]), b"\xff" * 8, b""])


def _bound(socket: zmq.Socket[bytes]) -> str:
    endpoint = socket.get(zmq.LAST_ENDPOINT)
    assert isinstance(endpoint, bytes)
    return endpoint.rstrip(b"\0").decode()


async def until(condition: Any, seconds: float = 10.0) -> None:
    """Wait until a condition holds; TimeoutError if it never does."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - conditions of any kind are waited for
            await asyncio.sleep(0.005)
