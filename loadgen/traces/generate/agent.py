"""Generates sessions of agents that call tools turn by turn, over a few long tool prompts.

Contexts may be compacted when they pass a limit, and sub-agents may run beside their parent.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Literal

from pydantic import Field

from loadgen.traces.generate.context import BlockIds, Context
from loadgen.traces.generate.draws import Zipf, lognormal_tokens
from loadgen.traces.trace import Trace, TraceRequest
from router.settings import Options

_TOOL_TOKENS = (5600, 11_500)
_OUTPUT_SECONDS = 0.025
_LEAST_TOOL_SECONDS = 1.5
_SUB_AGENT_TURNS = 0.2


class AgentOptions(Options):
    """How sessions run. The defaults make traces of the shipped one's kind."""

    sessions: int = Field(1500, ge=1, le=100_000, description="Sessions; as many as in the shipped trace.")
    sessions_per_second: float = Field(
        1.014,
        gt=0,
        le=1e6,
        description="Mean rate of the Poisson arrivals of sessions, as in the shipped trace.",
    )
    tool_prompts: int = Field(
        12,
        ge=1,
        le=10_000,
        description="Different tool prompts, used by Zipf's law; 12 as in the shipped trace.",
    )
    mean_turns: float = Field(
        9.5,
        ge=1,
        le=1000,
        description="Mean turns of a session (geometric), before the limit of the context.",
    )
    new_tokens: float = Field(
        600, ge=1, le=1_000_000, description="Median tokens a turn adds (tool results); log-normal, sigma 1."
    )
    max_context_tokens: int = Field(
        65_536, ge=256, le=10_000_000, description="A context that would exceed it ends the session."
    )
    compaction: Literal["none", "once", "every_turn"] = Field(
        "none",
        description="What happens behind compaction_tokens: nothing; the history gives way to a summary, one "
        "clean break; or a window slides, so that every turn drops the oldest message and breaks the prefix.",
    )
    compaction_tokens: int = Field(
        24_576, ge=256, le=10_000_000, description="Context beyond which it is compacted; reached by a third."
    )
    summary_tokens: int = Field(
        800, ge=1, le=1_000_000, description="Length of the summary that replaces a history; a page of text."
    )
    sub_agents: int = Field(
        0,
        ge=0,
        le=64,
        description="Sub-agents that start at once, in one turn of five, from the parent's prompt.",
    )
    sub_agent_turns: int = Field(
        3, ge=1, le=100, description="Turns of each sub-agent; a few, as for a search through files."
    )
    block_tokens: int = Field(128, ge=1, le=4096, description="Tokens in a block, as in the shipped trace.")


def generate_agent(options: AgentOptions, seed: int) -> Trace:
    """Return the turns of `sessions` sessions; those of sub-agents have sessions of their own."""
    random = Random(seed)
    ids = BlockIds(options.block_tokens)
    tools = [Context(ids).grown(random.randint(*_TOOL_TOKENS)) for _ in range(options.tool_prompts)]
    popularity = Zipf(options.tool_prompts)
    requests: list[TraceRequest] = []
    start = 0.0
    for session in range(options.sessions):
        agent = _Agent(options, random, tools[popularity.draw(random)])
        requests += agent.run(start, str(session))
        start += random.expovariate(options.sessions_per_second)
    requests.sort(key=lambda request: request.arrival_seconds)
    return Trace("agent", options.block_tokens, requests)


class _Agent:
    """One session: its prompt is the tool prompt and the messages behind it."""

    def __init__(self, options: AgentOptions, random: Random, tools: Context) -> None:
        self._options = options
        self._random = random
        self._tools = tools
        self._prompt = tools
        self._messages: list[int] = []

    def run(self, arrival: float, session: str) -> Iterator[TraceRequest]:
        """Yield the session's requests, those of its sub-agents between them."""
        options, random = self._options, self._random
        more = 1 - 1 / options.mean_turns
        while self._add(self._new_tokens()):
            output_tokens = lognormal_tokens(random, 118, 0.8, 10, 1500)
            yield self._prompt.request(arrival, output_tokens, session)
            done = arrival + self._turn_seconds(output_tokens)
            if options.sub_agents and random.random() < _SUB_AGENT_TURNS:
                begin = done
                for child in range(options.sub_agents):
                    requests = self._sub_agent(begin, f"{session}/{len(self._messages)}.{child}")
                    yield from requests
                    # The parent goes on when the last of them is done, with the results of all.
                    last = requests[-1]
                    done = max(done, last.arrival_seconds + self._turn_seconds(last.output_tokens))
                    output_tokens += last.output_tokens
            if random.random() >= more or not self._add(output_tokens):
                return
            arrival = done

    def _sub_agent(self, arrival: float, session: str) -> list[TraceRequest]:
        """Return the turns of a child that goes on from the parent's prompt, in its own way."""
        prompt = self._prompt
        requests = []
        for _ in range(self._options.sub_agent_turns):
            prompt = prompt.grown(self._new_tokens())
            output_tokens = lognormal_tokens(self._random, 118, 0.8, 10, 1500)
            requests.append(prompt.request(arrival, output_tokens, session))
            arrival += self._turn_seconds(output_tokens)
            prompt = prompt.grown(output_tokens)
        return requests

    def _add(self, tokens: int) -> bool:
        """Put a message behind the prompt, compacting it if due; False if the context cannot hold it."""
        options = self._options
        self._messages.append(tokens)
        self._prompt = self._prompt.grown(tokens)
        if options.compaction != "none" and self._prompt.tokens > options.compaction_tokens:
            if options.compaction == "once":
                # The newest message is what the model has to answer, and stays.
                self._messages = [options.summary_tokens, tokens]
            else:
                while len(self._messages) > 1 and self._window_tokens() > options.compaction_tokens:
                    del self._messages[0]
            self._prompt = self._tools.grown(sum(self._messages))
        return self._prompt.tokens <= options.max_context_tokens

    def _window_tokens(self) -> int:
        return self._tools.tokens + sum(self._messages)

    def _new_tokens(self) -> int:
        return lognormal_tokens(self._random, self._options.new_tokens, 1.0, 60, 8000)

    def _turn_seconds(self, output_tokens: int) -> float:
        """Draw the time from one request to the next: the answer is written, and the tool runs."""
        tool = lognormal_tokens(self._random, 3600, 0.8, 1, 3_600_000) / 1000
        return _OUTPUT_SECONDS * output_tokens + _LEAST_TOOL_SECONDS + tool
