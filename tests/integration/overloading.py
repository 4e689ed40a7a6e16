"""An overloaded fleet: chats of several turns that come at their own times, from clients in a hurry.

All is about thirty times as fast as on GPUs: an answer takes a quarter of a second, nobody waits above two.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from time import monotonic
from typing import Any

import aiohttp

from tests.integration.fleets import MODEL, LiveFleet, live_fleet

REPLICAS = 3
DEADLINE_SECONDS = 2.0
LONGEST_WAIT_SECONDS = 1.0
_RUNNING = 4
_ANSWER_TOKENS = 10
_CHATS = 90
_TURNS = 6
_TURN_WORDS = 200
_CALIBRATION_SECONDS = 2.0

REPLICA: dict[str, Any] = {
    "echo": {
        "prefill": {"base_seconds": 0.001, "per_token_seconds": 3e-5, "per_token_context_seconds": 0},
        "decode_seconds": 0.02,
        # Room for the chats of a third of the clients and some, not of all.
        "block_count": 3000,
    },
    "scheduler": {"max_running": _RUNNING, "max_batch_tokens": 4096},
}
LIMITS = {"longest_wait_seconds": LONGEST_WAIT_SECONDS}
# As if there were none.
NO_LIMITS = {"longest_wait_seconds": 80_000, "replica_waiting": 100_000, "replica_requests": 100_000}


@dataclass
class Seen:
    """What clients saw of the requests that came within `seconds`."""

    seconds: float
    sent: int = 0
    # Whole and in time.
    good: int = 0
    accepted_seconds: list[float] = field(default_factory=list)
    shed_seconds: list[float] = field(default_factory=list)
    too_late: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    # Of later turns and of first ones: how many were sent, and how many of these shed.
    by_length: dict[bool, list[int]] = field(default_factory=lambda: {False: [0, 0], True: [0, 0]})

    @property
    def goodput(self) -> float:
        """Good answers a second."""
        return self.good / self.seconds

    @property
    def hit_ratio(self) -> float:
        """Cached tokens by prompt tokens, of what was served."""
        return self.cached_tokens / max(1, self.prompt_tokens)

    def shed_share(self, long: bool) -> float:
        """Share of the requests that were shed, of long chats or of short ones."""
        sent, shed = self.by_length[long]
        return shed / max(1, sent)


class Chats:
    """Conversations that go on a turn at a time, each with a text of its own, and begin anew in the end."""

    def __init__(self, seed: int) -> None:
        self._draw = Random(seed)
        self._turn = {number: self._draw.randrange(_TURNS) for number in range(_CHATS)}
        self._life = dict.fromkeys(range(_CHATS), 0)

    def pick(self) -> tuple[int, int, list[dict[str, str]]]:
        """Return a chat, its turn, and its messages so far."""
        number = self._draw.randrange(_CHATS)
        words = Random(f"{number} {self._life[number]}")
        messages = []
        for turn in range(self._turn[number] + 1):
            if turn:
                messages.append({"role": "assistant", "content": "Salt water."})
            text = " ".join(str(words.randrange(1000, 9999)) for _ in range(_TURN_WORDS))
            messages.append({"role": "user", "content": text})
        return number, self._turn[number], messages

    def served(self, number: int, turn: int) -> None:
        """Go on with the next turn."""
        if self._turn[number] == turn:
            self._turn[number] = (turn + 1) % _TURNS
            self._life[number] += self._turn[number] == 0


class Crowd:
    """Clients of one fleet."""

    def __init__(self, fleet: LiveFleet, seed: int = 1) -> None:
        self._fleet = fleet
        self._chats = Chats(seed)
        self._draw = Random(seed)
        self.capacity = 0.0

    async def calibrate(self) -> None:
        """Learn how many answers a second the fleet gives to clients who come as soon as one is served."""
        seen = Seen(_CALIBRATION_SECONDS)
        until = monotonic() + 2 * _CALIBRATION_SECONDS

        async def client() -> None:
            while monotonic() < until:
                counts = monotonic() > until - _CALIBRATION_SECONDS
                await self._ask(seen if counts else Seen(1.0))

        await asyncio.gather(*(client() for _ in range(2 * REPLICAS * _RUNNING)))
        self.capacity = seen.goodput

    async def come(self, load: float, seconds: float) -> Seen:
        """Let requests come at `load` times the capacity; return once all have an answer or have left."""
        seen = Seen(seconds)
        due = began = monotonic()
        async with asyncio.TaskGroup() as group:
            while (due := due + self._draw.expovariate(load * self.capacity)) < began + seconds:
                await asyncio.sleep(due - monotonic())
                group.create_task(self._ask(seen))
        return seen

    async def _ask(self, seen: Seen) -> None:
        number, turn, messages = self._chats.pick()
        counts = seen.by_length[turn >= _TURNS // 2]
        body = {"model": MODEL, "messages": messages, "max_tokens": _ANSWER_TOKENS, "stream": True}
        body["stream_options"] = {"include_usage": True}
        url = f"{self._fleet.routers[0].address}/v1/chat/completions"
        began = monotonic()
        seen.sent += 1
        counts[0] += 1
        try:
            async with (
                asyncio.timeout(DEADLINE_SECONDS),
                self._fleet.session.post(url, data=json.dumps(body)) as response,
            ):
                raw = await response.read()
        except TimeoutError:
            seen.too_late += 1
            return
        except aiohttp.ClientError:
            seen.failed += 1
            return
        took = monotonic() - began
        if response.status == 200 and raw.endswith(b"[DONE]\n\n"):
            usage = json.loads(raw.split(b"\n\n")[-3].removeprefix(b"data: "))["usage"]
            seen.prompt_tokens += usage["prompt_tokens"]
            seen.cached_tokens += usage["prompt_tokens_details"]["cached_tokens"]
            seen.good += 1
            seen.accepted_seconds.append(took)
            self._chats.served(number, turn)
        elif response.status in (429, 503):
            counts[1] += 1
            seen.shed_seconds.append(took)
        else:
            seen.failed += 1


@asynccontextmanager
async def crowd(**limits: Any) -> AsyncIterator[Crowd]:
    """Start a fleet, a router with these limits, and clients who know what it can serve."""
    async with live_fleet(REPLICAS, replica=REPLICA, limits=limits) as fleet:
        clients = Crowd(fleet)
        await clients.calibrate()
        yield clients
