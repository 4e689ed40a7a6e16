"""The kinds of traces that can be generated, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from loadgen.traces.generate.agent import AgentOptions, generate_agent
from loadgen.traces.generate.chat import ChatOptions, generate_chat
from loadgen.traces.generate.hotspot import HotspotOptions, generate_hotspot
from loadgen.traces.generate.mix import (
    MixOptions,
    generate_conversation,
    generate_synthetic,
    generate_toolagent,
)
from loadgen.traces.trace import Trace, TraceError
from router.settings import Options


@dataclass(frozen=True, slots=True)
class Kind:
    """A generator, the options that it takes, and what its traces are like, in a line."""

    about: str
    options: type[Options]
    generate: Callable[[Any, int], Trace]


KINDS = {
    "agent": Kind(
        "Sessions of agents that call tools, over a few tool prompts.", AgentOptions, generate_agent
    ),
    "chat": Kind("Chats of many turns with one system prompt.", ChatOptions, generate_chat),
    "conversation": Kind("Chats as in Mooncake's conversation trace.", MixOptions, generate_conversation),
    "hotspot": Kind("Most requests share one long system prompt.", HotspotOptions, generate_hotspot),
    "synthetic": Kind("Documents asked often, as in Mooncake's trace.", MixOptions, generate_synthetic),
    "toolagent": Kind("Conversations mixed with single tool calls.", MixOptions, generate_toolagent),
}


def generate(kind: str, seed: int, **options: Any) -> Trace:
    """Make a trace of a kind by its name; TraceError for an unknown one or an option that does not fit."""
    if kind not in KINDS:
        raise TraceError(f"there is no kind of trace {kind!r}: it is one of {', '.join(KINDS)}")
    try:
        return KINDS[kind].generate(KINDS[kind].options(**options), seed)
    except ValidationError as error:
        problem = error.errors()[0]
        raise TraceError(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}") from error
