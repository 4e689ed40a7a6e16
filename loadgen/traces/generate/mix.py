"""Generates traffic as measured in Mooncake's traces: heavy-tailed prompts, short sessions, long pauses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush, merge
from itertools import count, islice
from random import Random

from pydantic import Field

from loadgen.traces.generate.context import BlockIds, Context
from loadgen.traces.generate.draws import measured
from loadgen.traces.generate.measured import CONVERSATION, SYNTHETIC, SessionMix
from loadgen.traces.trace import Trace, TraceRequest
from router.settings import Options

_MAX_PROMPT_TOKENS = 200_000
_MAX_TURNS = 60
# Single calls for each request of the conversations, and the prefix that they share.
_TOOL_RATIO, _TOOL_TOKENS = 10_150 / 12_031, 12 * 512
_CHECK_RATIO, _CHECK_TOKENS = 3_070 / 12_031, 5 * 512
_CONVERSATIONS_PER_SECOND = 12_031 / 3537


class MixOptions(Options):
    """How much traffic; its kind is measured, not chosen."""

    requests: int = Field(
        12_000, ge=1, le=1_000_000, description="Requests; as many as in Mooncake's conversation trace."
    )
    rate_factor: float = Field(
        1, gt=0, le=1000, description="Sessions begin so many times as often; 1 is the measured rate."
    )
    block_tokens: int = Field(512, ge=1, le=4096, description="Tokens in a block, as in Mooncake's traces.")


def generate_conversation(options: MixOptions, seed: int) -> Trace:
    """Return chat traffic as in Mooncake's conversation trace, its times not in bins."""
    requests = _sessions(CONVERSATION, options.rate_factor, Random(seed), BlockIds(options.block_tokens))
    return Trace("conversation", options.block_tokens, list(islice(requests, options.requests)))


def generate_synthetic(options: MixOptions, seed: int) -> Trace:
    """Return traffic as in Mooncake's synthetic trace: a fifth of the sessions ask one document often."""
    requests = _sessions(SYNTHETIC, options.rate_factor, Random(seed), BlockIds(options.block_tokens))
    return Trace("synthetic", options.block_tokens, list(islice(requests, options.requests)))


def generate_toolagent(options: MixOptions, seed: int) -> Trace:
    """Return chat traffic mixed with single calls that share one of two prefixes, as in toolagent_recon."""
    random, ids = Random(seed), BlockIds(options.block_tokens)
    rate = _CONVERSATIONS_PER_SECOND * options.rate_factor
    tool, check = Context(ids).grown(_TOOL_TOKENS), Context(ids).grown(_CHECK_TOKENS)
    requests = merge(
        _sessions(CONVERSATION, options.rate_factor, Random(random.random()), ids),
        _calls(tool, "tool", rate * _TOOL_RATIO, _tool_call, Random(random.random())),
        _calls(check, "check", rate * _CHECK_RATIO, _check_call, Random(random.random())),
        key=lambda request: request.arrival_seconds,
    )
    return Trace("toolagent", options.block_tokens, list(islice(requests, options.requests)))


def _sessions(mix: SessionMix, rate_factor: float, random: Random, ids: BlockIds) -> Iterator[TraceRequest]:
    """Yield the turns of sessions that begin at random, in the order of their arrival, without end."""
    shared = Context(ids).grown(mix.shared_tokens)
    due: list[tuple[float, int, _Session]] = []
    numbers = count()
    start = 0.0
    while True:
        while not due or start <= due[0][0]:
            heappush(due, (start, next(numbers), _Session(mix, random, shared)))
            start += random.expovariate(mix.sessions_per_second * rate_factor)
        arrival, number, session = heappop(due)
        yield session.prompt.request(arrival, session.output_tokens(), str(number))
        if session.next_turn():
            heappush(due, (arrival + measured(random, mix.gap_seconds), number, session))


class _Session:
    """One conversation: the prompt of its turn, and how many turns are left."""

    def __init__(self, mix: SessionMix, random: Random, shared: Context) -> None:
        self._mix = mix
        self._random = random
        self._shared = shared
        turns = 1
        while turns < _MAX_TURNS and random.random() < mix.goes_on[min(turns, len(mix.goes_on)) - 1]:
            turns += 1
        self._lone = turns == 1
        self._left = turns - 1
        tokens = round(measured(random, mix.lone_tokens if self._lone else mix.first_tokens))
        self.prompt = self._resized(shared, tokens)

    def output_tokens(self) -> int:
        """Draw the length of this turn's answer."""
        mix = self._mix
        return round(measured(self._random, mix.lone_output_tokens if self._lone else mix.output_tokens))

    def next_turn(self) -> bool:
        """Go on to the next turn; False if there is none."""
        if not self._left:
            return False
        self._left -= 1
        mix, random, tokens = self._mix, self._random, self.prompt.tokens
        likely = next(chance for least, chance in reversed(mix.parts_from) if tokens >= least)
        if random.random() < likely:
            kept = max(self._shared.tokens, int(tokens * measured(random, mix.kept)))
            self.prompt = self._resized(self.prompt.cut(kept), round(tokens * measured(random, mix.ratio)))
        else:
            self.prompt = self._resized(self.prompt, tokens + round(measured(random, mix.growth_tokens)))
        return True

    def _resized(self, prompt: Context, tokens: int) -> Context:
        """Return `prompt`, or what fits of it, continued by other text to `tokens` tokens."""
        tokens = min(max(tokens, 1), _MAX_PROMPT_TOKENS)
        kept = prompt.cut(tokens)
        return kept.grown(tokens - kept.tokens)


def _calls(
    prefix: Context, name: str, rate: float, lengths: Callable[[Random], tuple[int, int]], random: Random
) -> Iterator[TraceRequest]:
    """Yield single calls with Poisson arrivals, without end; `lengths` draws those of prompt and answer."""
    arrival = 0.0
    for number in count():
        arrival += random.expovariate(rate)
        own_tokens, output_tokens = lengths(random)
        yield prefix.grown(own_tokens).request(arrival, output_tokens, f"{name}/{number}")


def _tool_call(random: Random) -> tuple[int, int]:
    own_tokens = 1 + min(4000, round(random.expovariate(1 / 600)))
    # Half of the answers are a bare word, the others a call with arguments.
    return own_tokens, 3 if random.random() < 0.5 else random.randint(20, 55)


def _check_call(random: Random) -> tuple[int, int]:
    return random.randint(420, 920), random.randint(16, 26)
