"""One publisher's events into one index: in order, without gaps, or not at all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from typing import Protocol

import zmq
from zmq.utils.monitor import parse_monitor_message

from router.events.course import WINDOW, Arrival, Course
from router.events.decode import DecodeError, decode_batch
from router.events.hub import Hub
from router.events.index import ResidentIndex
from router.events.mailbox import Mailbox, open_socket
from router.events.replay import ReplayError, read_message, replay

log = logging.getLogger("kvring.events")

# A publisher answers within 0.1 s when idle, and after its step when busy.
_SILENCE_SECONDS = 5.0
# A publisher that says nothing is asked whether it did: its last words may have been lost.
_QUIET_SECONDS = 5.0
_RETRY_SECONDS = 5.0
# After this without a publisher the log tells: its port may be closed, or bound in another address family.
_ALONE_SECONDS = 10.0
# A replay that lost messages on its way is asked for again, as long as each try brings more.
_MOST_REPLAYS = 8
# Larger ones are read in a thread: it takes milliseconds.
_INLINE_BYTES = 64 * 1024
_WATCHED = zmq.Event.HANDSHAKE_SUCCEEDED | zmq.Event.DISCONNECTED


class Source(Protocol):
    """Where one rank publishes, and where it replays (empty: nowhere).

    An endpoint whose host is `*`, or with `@` before it, is bound to: the publisher connects.
    """

    @property
    def endpoint(self) -> str: ...
    @property
    def replay_endpoint(self) -> str: ...
    @property
    def topic(self) -> str: ...


class Feed:
    """Follows one publisher until cancelled.

    `batches` were taken and `gaps` found. The index was `dropped` so many times, for a gap that could not be
    filled, a publisher's new life, or a message that cannot be read. `unknown` are events of unknown kinds.
    """

    def __init__(self, source: Source, index: ResidentIndex, hub: Hub, clock: Callable[[], float]) -> None:
        self.index = index
        self.batches = 0
        self.gaps = 0
        self.dropped = 0
        self.unknown = 0
        self.heard_at = float("-inf")
        self._source = source
        self._hub = hub
        self._clock = clock
        self._course = Course()
        self._arrived = asyncio.Event()
        self._peers = 0
        # Whether what the index holds is what the publisher holds, as far as it has told.
        self._current = False
        # Whether the publisher replays; one that failed to is asked again when something is missing.
        self._replays = bool(source.replay_endpoint)
        self._said: set[str] = set()
        self._alone: asyncio.TimerHandle | None = None

    @property
    def connected(self) -> bool:
        """Whether a publisher is there."""
        return self._peers > 0

    @property
    def trusted(self) -> bool:
        """Whether the index may be used: nothing was missed since it began."""
        return self.connected and self._current and self.index.usable

    async def run(self) -> None:
        """Follow, whatever comes."""
        while True:
            try:
                await self._follow()
            except (zmq.ZMQError, OSError) as error:
                self._say(f"cannot be followed: {error}")
            except Exception:
                log.exception("following %s failed", self._source.endpoint)
                # It may have been in the midst of a message.
                await self._drop("it is in doubt")
            self._current = False
            await asyncio.sleep(_RETRY_SECONDS)

    async def _follow(self) -> None:
        socket = open_socket(self._hub.context, zmq.SocketType.SUB, WINDOW)
        monitor = Mailbox(socket.get_monitor_socket(_WATCHED), self._arrived)
        mailbox = Mailbox(socket, self._arrived)
        self._peers = 0
        self._await_publisher()
        try:
            socket.subscribe(self._source.topic)
            endpoint = self._source.endpoint
            if endpoint.startswith("@") or "//*" in endpoint:
                socket.bind(endpoint.removeprefix("@"))
            else:
                socket.connect(endpoint)
            while True:
                # Before both are read: what comes meanwhile sets it again.
                self._arrived.clear()
                await self._note(monitor)
                frames = mailbox.receive()
                if frames is not None:
                    await self._live(frames)
                    await self._hub.breathe()
                else:
                    await self._wait()
        finally:
            self._peers = 0
            self._found()
            socket.disable_monitor()
            monitor.close()
            mailbox.close()

    async def _wait(self) -> None:
        """Wait until something may have come; ask a publisher that is silent for long."""
        try:
            async with asyncio.timeout(_QUIET_SECONDS if self._replays else None):
                await self._arrived.wait()
        except TimeoutError:
            if self.connected:
                await self._catch_up()

    async def _note(self, monitor: Mailbox) -> None:
        """Note who came and went."""
        came = False
        before = self.connected
        while (frames := monitor.receive()) is not None:
            if parse_monitor_message(frames)["event"] == zmq.Event.HANDSHAKE_SUCCEEDED:
                self._peers += 1
                came = True
            else:
                self._peers = max(0, self._peers - 1)
                # It may come back as another, or have said something meanwhile.
                self._current = False
        if self.connected:
            self._found()
        elif before or came:
            self._await_publisher()
        if came:
            log.info("following the KV events of %s", self._source.endpoint)
            if self._course.last is None and not self._source.replay_endpoint:
                self._current = True
            await self._catch_up()

    def _await_publisher(self) -> None:
        """Tell after a while that no publisher is there; once, until one was."""
        self._found()
        self._alone = asyncio.get_running_loop().call_later(
            _ALONE_SECONDS,
            log.warning,
            "no publisher of KV events is there at %s, for %.0f s now",
            self._source.endpoint,
            _ALONE_SECONDS,
        )

    def _found(self) -> None:
        if self._alone is not None:
            self._alone.cancel()
            self._alone = None

    async def _live(self, frames: list[bytes]) -> None:
        try:
            number, payload = read_message(frames)
        except ValueError as error:
            self._say(f"sent what is no message: {error}")
            return
        self.heard_at = self._clock()
        arrival = self._course.place(number, payload)
        if arrival is Arrival.GAP:
            self.gaps += 1
        elif arrival is Arrival.RESTART:
            await self._drop("it restarted")
        if arrival in (Arrival.GAP, Arrival.RESTART):
            await self._catch_up()
            arrival = self._course.place(number, payload)
            if arrival in (Arrival.GAP, Arrival.RESTART):
                await self._drop("messages were missed that cannot be had any more")
                arrival = Arrival.NEXT
        if arrival is Arrival.NEXT:
            await self._take(number, payload)
            self._current = True

    async def _catch_up(self) -> None:
        """Take what was missed, as far as it can be had; after that the index is current."""
        if not self._source.replay_endpoint:
            return
        whole = False
        try:
            for _ in range(_MOST_REPLAYS):
                before = self._course.last
                whole = await self._replay()
                if whole or self._course.last == before:
                    break
            self._replays = True
        except (ReplayError, zmq.ZMQError) as error:
            self._say(f"replays nothing at {self._source.replay_endpoint}: {error}")
            self._replays = False
        # What cannot be had leaves a new index as it is, and one of before in doubt.
        self._current = self._current or whole or self._course.last is None

    async def _replay(self) -> bool:
        """Take what the publisher still holds behind the last message; say whether that came whole."""
        last = self._course.last
        start = 0 if last is None else last
        first = True
        answers = replay(self._hub.context, self._source.replay_endpoint, start, _SILENCE_SECONDS)
        async with aclosing(answers):
            async for number, payload in answers:
                self.heard_at = self._clock()
                arrival = self._course.place(number, payload)
                await self._hub.breathe()
                if arrival is Arrival.NEXT:
                    await self._take(number, payload)
                elif arrival is Arrival.GAP and not first:
                    return False
                elif arrival is not Arrival.SEEN:
                    await self._drop("messages were missed" if arrival is Arrival.GAP else "it restarted")
                    return False
                first = False
        self.heard_at = self._clock()
        if first and last is not None:
            # Not even the last message, which this heard: it is another publisher, that said less so far.
            await self._drop("it restarted")
            return False
        return True

    async def _take(self, number: int, payload: bytes) -> None:
        self._course.passed(number, payload)
        try:
            if len(payload) <= _INLINE_BYTES:
                batch = decode_batch(payload)
            else:
                batch = await asyncio.to_thread(decode_batch, payload)
        except DecodeError as error:
            self._say(f"sent what cannot be read: {error}")
            # What was removed by it is not known.
            await self._drop("a message cannot be read", forget=False)
            self.batches += 1
            return
        for event in batch.events:
            for _ in self.index.take(event):
                await self._hub.breathe()
        self.unknown += batch.unknown
        self.batches += 1
        for reason in self.index.skipped_blocks:
            self._say(f"stores blocks that cannot be told of, with {reason}")

    async def _drop(self, why: str, forget: bool = True) -> None:
        """Forget what the index holds: it cannot be trusted."""
        if self.index.block_count:
            log.warning("the index of %s is dropped: %s", self._source.endpoint, why)
        self.dropped += 1
        if forget:
            self._course.forget()
        for _ in self.index.clear():
            await self._hub.breathe()

    def _say(self, what: str) -> None:
        """Log a thing once."""
        if what not in self._said and len(self._said) < 100:
            self._said.add(what)
            log.warning("%s %s", self._source.endpoint, what)
