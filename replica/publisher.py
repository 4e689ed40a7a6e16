"""Publishes KV events over ZeroMQ, and replays what a follower missed, in a thread of its own.

Framing of vLLM 0.33: PUB sends [topic, sequence, payload]; a DEALER that sends [empty, sequence] to the
ROUTER gets [empty, topic, sequence, payload] for each kept batch from that one on, and an end mark. Sequences
are 8 bytes, big-endian, from 0.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from contextlib import suppress
from itertools import islice
from threading import Thread

import zmq

from replica.event_options import EventOptions
from replica.events import Changes, encode

_log = logging.getLogger(__name__)

_SEQUENCE_BYTES = 8
_END_MARK = (-1).to_bytes(_SEQUENCE_BYTES, "big", signed=True)
# Sent between two looks at the questions, and answered between two at what is new.
_AT_ONCE = 256


class ZmqPublisher:
    """Binds when it is made (OSError if it cannot), sends from `start` on.

    `endpoint` and `replay_endpoint` are what is configured, with the port that was found for port 0.
    """

    def __init__(self, options: EventOptions, block_tokens: int) -> None:
        self.published = 0
        self.dropped = 0
        self._block_tokens = block_tokens
        self._topic = options.topic.encode()
        self._limit = options.high_water_mark
        # Appended to by the engine, taken from by the thread: deques need no lock for that.
        self._queue: deque[Changes] = deque()
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=options.buffer_steps)
        self._stopping = False
        self._woken = False
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            self._pub = self._socket(zmq.PUB, options.endpoint)
            self._pub.setsockopt(zmq.SNDHWM, options.high_water_mark)
            self.endpoint = _attach(self._pub, options.endpoint, bind=_is_ours(options.endpoint))
            self._router: zmq.Socket[bytes] | None = None
            self.replay_endpoint = ""
            if options.replay_endpoint:
                self._router = self._socket(zmq.ROUTER, options.replay_endpoint)
                # A whole answer must fit, and a follower that takes none in is noticed, not served in part.
                self._router.setsockopt(zmq.SNDHWM, options.buffer_steps + 1)
                self._router.setsockopt(zmq.ROUTER_MANDATORY, 1)
                self.replay_endpoint = _attach(self._router, options.replay_endpoint, bind=True)
        except OSError:
            self._context.destroy(linger=0)
            raise
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        os.set_blocking(self._write_end, False)
        self._thread = Thread(target=self._loop, name="events", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def put(self, changes: Changes) -> None:
        """See replica.events.Publisher. A drop shows to followers as a gap in the sequence."""
        if len(self._queue) >= self._limit:
            self.dropped += 1
            return
        self._queue.append(changes)
        self._wake()

    def close(self) -> None:
        """Send what waits, as far as it goes without waiting, and end; what is put later is dropped.

        Closing twice closes once.
        """
        if self._stopping:
            return
        # An engine whose last step takes too long is left behind, and may put still.
        self._limit = 0
        self._stopping = True
        self._wake()
        if self._thread.ident is not None:
            self._thread.join()
        self._context.destroy(linger=0)
        os.close(self._read_end)
        os.close(self._write_end)

    def to_json(self) -> dict[str, object]:
        """Return what followers must know, as vLLM's /kv_event_sources has it of one rank."""
        return {
            "endpoint": self.endpoint,
            "replay_endpoint": self.replay_endpoint or None,
            "topic": self._topic.decode(),
        }

    def _socket(self, kind: int, endpoint: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        # Of `*`, all addresses of both families; where there is only one, that one.
        if any(mark in endpoint for mark in ("*", "::", "[")):
            socket.setsockopt(zmq.IPV6, 1)
        return socket

    def _wake(self) -> None:
        # Once is enough until it has looked, and a pipe that is full has told more than that.
        if not self._woken:
            self._woken = True
            with suppress(BlockingIOError):
                os.write(self._write_end, b"\0")

    def _loop(self) -> None:
        poller = zmq.Poller()
        poller.register(self._read_end, zmq.POLLIN)
        if self._router is not None:
            poller.register(self._router, zmq.POLLIN)
        while True:
            ready = dict(poller.poll(0 if self._queue else None))
            if self._read_end in ready:
                os.read(self._read_end, 65_536)
                # Before the queue is looked at: what comes later wakes anew.
                self._woken = False
            stopping = self._stopping
            self._send()
            if stopping and not self._queue:
                return
            if self._router in ready:
                self._answer()

    def _send(self) -> None:
        for _ in range(_AT_ONCE):
            if not self._queue:
                return
            changes = self._queue.popleft()
            try:
                payload = encode(changes, self._block_tokens)
            except (ValueError, OverflowError, TypeError):
                _log.exception("a batch of events cannot be encoded")
                self.dropped += 1
                continue
            self._kept.append((changes.sequence, payload))
            # A PUB never waits: beyond the high-water mark of a follower its messages are dropped.
            self._pub.send_multipart((self._topic, _number(changes.sequence), payload))
            self.published += 1

    def _answer(self) -> None:
        """Answer one question, cutting it short for a follower that takes in nothing."""
        assert self._router is not None
        who, *frames = self._router.recv_multipart()
        if len(frames) != 2 or len(frames[1]) != _SEQUENCE_BYTES:
            return
        first = int.from_bytes(frames[1], "big")
        kept = self._kept
        skipped = max(0, min(len(kept), first - kept[0][0] if kept else 0))
        # Drops leave holes in the numbers, so that the place reckoned may be too far on.
        while skipped and kept[skipped - 1][0] >= first:
            skipped -= 1
        answers = [
            (who, b"", self._topic, _number(sequence), payload)
            for sequence, payload in islice(kept, skipped, None)
        ]
        try:
            for answer in answers:
                self._router.send_multipart(answer, zmq.NOBLOCK)
            self._router.send_multipart((who, b"", b"", _END_MARK, b""), zmq.NOBLOCK)
        except zmq.ZMQError:
            _log.warning("a follower that asked for events from %d does not take them", first)


def _attach(socket: zmq.Socket[bytes], endpoint: str, *, bind: bool) -> str:
    """Bind or connect; return the endpoint with the port that it got."""
    try:
        if not bind:
            socket.connect(endpoint)
            return endpoint
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        raise OSError(error.errno, f"events cannot be published at {endpoint}: {error}") from error
    if not endpoint.startswith("tcp://"):
        return endpoint
    port = socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2]
    return f"{endpoint.rpartition(':')[0]}:{port}"


def _is_ours(endpoint: str) -> bool:
    """Say whether an endpoint is bound: vLLM's rule, and any host of all our own addresses."""
    return endpoint.startswith(("ipc://", "inproc://")) or any(
        wildcard in endpoint for wildcard in ("*", "::", "0.0.0.0")
    )


def _number(sequence: int) -> bytes:
    return sequence.to_bytes(_SEQUENCE_BYTES, "big")
