"""The clients of the soak: chats, long prompts, slow readers, clients that leave, and their verdicts."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random

from tests.soak.asks import Ask, Asker, Violation, check_error
from tests.soak.garbage import throw_garbage
from tests.soak.wire import Broken, Head, Wire

# An answer that takes longer has been lost, whatever befell its replica.
_PATIENCE_SECONDS = 60.0
_LONG_PROMPT_WORDS = 170_000
# Their names, and they themselves, take more than the memory of a router for what it has seen.
_FILLING = 40


class Clients:
    """So many clients at once, each doing one thing after another. `run` returns once all have ended."""

    def __init__(self, port: int, random: Random) -> None:
        self.asker = Asker(random)
        # How requests ended; and each error that clients saw, with when that was asked for, and when it came.
        self.outcomes: Counter[str] = Counter()
        self.errors: dict[str, tuple[int, str, float, float]] = {}
        # Requests that were answered, rightly or by an error.
        self.answered: set[str] = set()
        self.violations: list[str] = []
        self._port = port
        self._random = random
        self._long = asyncio.Semaphore(1)
        self._base = self.asker.words(_LONG_PROMPT_WORDS)

    async def fill(self) -> None:
        """Ask with long prompts for more than can be had, until what remembers prompts has no more room."""
        fill = asyncio.Semaphore(4)

        async def one() -> None:
            async with fill:
                await self._alone(self.asker.completion(f"{self._random.random()} {self._base}", 10**6))

        async with asyncio.TaskGroup() as all:
            for _ in range(_FILLING):
                all.create_task(one())

    async def run(self, count: int, over: asyncio.Event) -> None:
        """Let `count` clients go on until it is over."""
        async with asyncio.TaskGroup() as all:
            for _ in range(count):
                all.create_task(self._client(over))

    async def _client(self, over: asyncio.Event) -> None:
        kinds: dict[Callable[[], Awaitable[None]], int] = {
            self._chat: 10,
            self._single: 10,
            self._leave: 8,
            self._read_slowly: 2,
            self._ask_long: 1,
            self._throw_garbage: 2,
        }
        while not over.is_set():
            (do,) = self._random.choices(list(kinds), list(kinds.values()))
            try:
                async with asyncio.timeout(_PATIENCE_SECONDS):
                    await do()
            except Violation as violation:
                self.violations.append(str(violation))
            except TimeoutError:
                self.violations.append(f"{do.__name__} took more than {_PATIENCE_SECONDS:.0f} s")
            await asyncio.sleep(self._random.uniform(0, 0.1))

    # What clients do.

    async def _chat(self) -> None:
        """Have a conversation over one connection, or as few as may be."""
        asker, wire = self.asker, None
        system = f"You are assistant {self._random.randrange(12)}. " + "Be brief. " * 40
        messages = [{"role": "system", "content": system}]
        try:
            for _ in range(self._random.randrange(1, 5)):
                messages.append({"role": "user", "content": asker.words(self._random.randrange(3, 60))})
                ask = asker.chat(messages)
                wire = wire or await Wire.open(self._port)
                if not await self._stay(wire, ask):
                    return
                if not wire.kept:
                    wire.abort()
                    wire = None
                messages = [*messages, {"role": "assistant", "content": ask.answer}]
        finally:
            if wire is not None:
                wire.close()

    async def _single(self) -> None:
        """Ask one thing over a connection of its own."""
        await self._alone(self.asker.completion(self.asker.words(self._random.randrange(1, 200))))

    async def _ask_long(self) -> None:
        """Ask with a prompt of 1 MB."""
        if self._long.locked():
            return
        async with self._long:
            await self._alone(self.asker.completion(f"{self._random.random()} {self._base}"))

    async def _read_slowly(self) -> None:
        """Have many texts at once, and read them as over a bad line."""
        tokens, choices = self._random.randrange(60, 120), self._random.choice((1, 8))
        ask = self.asker.completion(self.asker.words(20), tokens, choices)
        wire = await Wire.open(self._port, slow=True)
        try:
            await self._stay(wire, ask, slow=True)
        finally:
            wire.close()

    async def _alone(self, ask: Ask) -> None:
        wire = await Wire.open(self._port)
        try:
            await self._stay(wire, ask, close=self._random.random() < 0.5)
        finally:
            wire.close()

    async def _throw_garbage(self) -> None:
        self.outcomes[f"garbage: {await throw_garbage(self._port, self._random)}"] += 1

    async def _leave(self) -> None:
        """Begin to ask, and leave at any point."""
        random, ask = self._random, self.asker.completion(self.asker.words(self._random.randrange(1, 3000)))
        raw = ask.raw()
        head = raw.index(b"\r\n\r\n") + 4
        phase = random.choice(("connected", "head", "body", "waiting", "reading"))
        cuts = {"connected": 0, "head": random.randrange(1, head), "body": random.randrange(head, len(raw))}
        wire = await Wire.open(self._port)
        try:
            await wire.send(raw[: cuts.get(phase, len(raw))])
            if phase == "reading":
                left = random.randrange(1, 6000)
                async for piece in wire.body(await wire.head()):
                    left -= len(piece)
                    if left < 0:
                        break
            else:
                await asyncio.sleep(random.choice((0, 0.01, 0.1, 0.5)))
        except Broken:
            # It would have left anyway.
            pass
        finally:
            random.choice((wire.abort, wire.close))()
        self.outcomes[f"left: {phase}"] += 1

    # What becomes of those that stay.

    async def _stay(self, wire: Wire, ask: Ask, close: bool = False, slow: bool = False) -> bool:
        """Ask, and read the answer to its end; say whether it was the right one."""
        body, whole, began_at = bytearray(), False, asyncio.get_running_loop().time()
        try:
            await wire.send(ask.raw(close))
            head = await wire.head()
        except Broken as broken:
            raise Violation(f"{ask.id}: no answer, not even an error: {broken}") from broken
        try:
            async for piece in wire.body(head):
                body += piece
                if slow:
                    await asyncio.sleep(0.005)
            whole = True
        except Broken:
            wire.kept = False
        error = _judged(ask, head, bytes(body), whole)
        self.answered.add(ask.id)
        self.outcomes[f"{head.status} {error}" if error else "right"] += 1
        if error:
            self.errors[ask.id] = head.status, error, began_at, asyncio.get_running_loop().time()
        return not error


def _judged(ask: Ask, head: Head, body: bytes, whole: bool) -> str:
    """Return what error an answer tells of, "" for a right one; Violation where it is what may never be."""
    if head.fields.get("x-request-id") != ask.id:
        raise Violation(f"{ask.id}: the answer is to {head.fields.get('x-request-id')}")
    if head.status != 200:
        if not whole:
            raise Violation(f"{ask.id}: an error that is cut off")
        return check_error(ask.id, head.status, body)
    streamed = head.fields["content-type"].startswith("text/event-stream")
    if streamed is not ask.body["stream"]:
        raise Violation(f"{ask.id}: {head.fields['content-type']}")
    if not whole:
        if streamed:
            ask.check_broken(body)
        return "broken off"
    (ask.check_stream if streamed else ask.check_whole)(body)
    return ""
