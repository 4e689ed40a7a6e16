"""When imported requests arrive, where a log does not tell."""

from __future__ import annotations

from random import Random

from pydantic import Field

from router.settings import Options


class ArrivalOptions(Options):
    """A seeded model of arrivals: single requests and chats come at random, turns after a pause."""

    per_second: float = Field(
        1,
        gt=0,
        le=1e6,
        description="Mean rate of requests, or of chats that begin; Poisson. Scale it on use.",
    )
    pause_seconds: float = Field(
        20, ge=0, le=86_400, description="Mean time between an answer and the chat's next turn; exponential."
    )
    answer_tokens_per_second: float = Field(
        40, gt=0, le=1e6, description="How fast answers come, which the next turn waits for; 25 ms a token."
    )
    seed: int = Field(0, ge=0, description="Seed of all of these; the same one gives the same trace.")


class Arrivals:
    """Draws times by the options."""

    def __init__(self, options: ArrivalOptions) -> None:
        self._options = options
        self._random = Random(options.seed)
        self._next = 0.0

    def begin(self) -> float:
        """Return when the next request or chat begins, in seconds."""
        now = self._next
        self._next += self._random.expovariate(self._options.per_second)
        return now

    def after(self, arrival_seconds: float, output_tokens: int) -> float:
        """Return when the turn comes that follows one of `arrival_seconds` and its answer."""
        answered = arrival_seconds + output_tokens / self._options.answer_tokens_per_second
        pause = self._options.pause_seconds
        return answered + (self._random.expovariate(1 / pause) if pause else 0.0)
