"""Drives a trace by the clock: each request is sent when it is due, whatever became of the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from loadgen.client import Answer, Client
from loadgen.replay.prompts import Prompts
from loadgen.traces.trace import Trace, TraceRequest


@dataclass(frozen=True, slots=True)
class Pace:
    """How a trace is played.

    Arrivals are divided by `time_scale`. With `in_flight` requests unanswered, the next ones wait their turn.
    `max_output_tokens` cuts answers, None leaves them as long as the trace says.
    """

    time_scale: float = 1.0
    in_flight: int = 1024
    max_output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Replayed:
    """One request of a replay: when it was due and sent, in seconds since the first was due; its answer."""

    number: int
    due_seconds: float
    sent_seconds: float
    answer: Answer

    @property
    def ttft_seconds(self) -> float | None:
        """The time from when it was due to its first token, None if that never came."""
        first = self.answer.first_token_seconds
        # Of two clocks read one after the other, the difference may be a hair below 0.
        return None if first is None else max(0.0, self.sent_seconds - self.due_seconds) + first


async def drive(
    trace: Trace,
    prompts: Prompts,
    client: Client,
    model: str,
    pace: Pace,
    on_answer: Callable[[Replayed], None] = lambda replayed: None,
) -> list[Replayed]:
    """Play the whole trace and return what came of each request, in the trace's order."""
    loop = asyncio.get_running_loop()
    done: list[Replayed] = []
    room = asyncio.Semaphore(pace.in_flight)
    first = trace.requests[0].arrival_seconds if trace.requests else 0.0
    began = loop.time()

    async def ask(number: int, request: TraceRequest, due: float) -> None:
        try:
            body = {
                "model": model,
                "prompt": prompts.of(request, number),
                "max_tokens": _output_tokens(request, pace),
                "temperature": 0,
                # Answers are as long as the trace says, whatever the model would like to say.
                "ignore_eos": True,
            }
            sent = loop.time() - began
            answer = await client.ask(body, request.session)
            # A long trace has many answers, and only their first tokens are looked at.
            replayed = Replayed(number, due, sent, replace(answer, text="", gaps_seconds=()))
        finally:
            room.release()
        done.append(replayed)
        on_answer(replayed)

    async with asyncio.TaskGroup() as group:
        for number, request in enumerate(trace.requests):
            due = (request.arrival_seconds - first) / pace.time_scale
            await asyncio.sleep(max(0.0, began + due - loop.time()))
            await room.acquire()
            group.create_task(ask(number, request, due))
    return sorted(done, key=lambda replayed: replayed.number)


def _output_tokens(request: TraceRequest, pace: Pace) -> int:
    tokens = max(1, request.output_tokens)
    return tokens if pace.max_output_tokens is None else min(tokens, pace.max_output_tokens)
