"""Generates chats of many turns that all begin with the same system prompt."""

from __future__ import annotations

from random import Random

from pydantic import Field

from loadgen.traces.generate.context import BlockIds, Context
from loadgen.traces.trace import Trace, TraceError, TraceRequest
from router.settings import Options


class ChatOptions(Options):
    """How many chats there are, and how they grow."""

    conversations: int = Field(
        100, ge=1, le=100_000, description="Chats that run side by side; a hundred make shared blocks hot."
    )
    turns: int = Field(
        8, ge=1, le=1000, description="Requests of each chat; eight let a lost home show more than once."
    )
    system_tokens: int = Field(
        304,
        ge=0,
        le=1_000_000,
        description="Length of the shared system prompt; a short one, hard to route by.",
    )
    new_tokens: int = Field(
        120,
        ge=1,
        le=1_000_000,
        description="Tokens by which a turn exceeds the last one, its answer included.",
    )
    output_tokens: int = Field(
        60, ge=0, le=1_000_000, description="Tokens of an answer; half of what a turn adds, as in small talk."
    )
    turn_seconds: float = Field(
        20,
        gt=0,
        le=86_400,
        description="Mean time between a chat's turns; about what reading and typing take.",
    )
    block_tokens: int = Field(16, ge=1, le=4096, description="Tokens in a block; 16 as the router's chain.")


def generate_chat(options: ChatOptions, seed: int) -> Trace:
    """Return `conversations` x `turns` requests; TraceError if answers are longer than what a turn adds."""
    if options.turns > 1 and options.output_tokens > options.new_tokens:
        raise TraceError("output_tokens cannot exceed new_tokens: a turn's prompt holds the answer before it")
    random = Random(seed)
    ids = BlockIds(options.block_tokens)
    system = Context(ids).grown(options.system_tokens)
    requests: list[TraceRequest] = []
    for chat in range(options.conversations):
        prompt = system
        arrival = random.uniform(0, options.turn_seconds)
        for _ in range(options.turns):
            prompt = prompt.grown(options.new_tokens)
            requests.append(prompt.request(arrival, options.output_tokens, str(chat)))
            # Half of it is certain, lest a turn come before the answer to the last one.
            arrival += options.turn_seconds / 2 * (1 + random.expovariate(1))
    requests.sort(key=lambda request: request.arrival_seconds)
    return Trace("chat", options.block_tokens, requests)
