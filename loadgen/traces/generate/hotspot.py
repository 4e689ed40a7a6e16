"""Generates single requests of which most share one long system prompt, and the others share many."""

from __future__ import annotations

from random import Random

from pydantic import Field

from loadgen.traces.generate.context import BlockIds, Context
from loadgen.traces.generate.draws import Zipf, lognormal_tokens
from loadgen.traces.trace import Trace, TraceRequest
from router.settings import Options


class HotspotOptions(Options):
    """How hot the prompt is. The defaults make traces of the shipped one's kind."""

    requests: int = Field(
        12_000, ge=1, le=1_000_000, description="Requests; as many as in the shipped trace."
    )
    requests_per_second: float = Field(
        60.5, gt=0, le=1e6, description="Mean rate of the Poisson arrivals, as in the shipped trace."
    )
    hot_share: float = Field(
        0.6,
        ge=0,
        le=1,
        description="Share of the requests with the hot prompt; most, so that its home floods.",
    )
    hot_tokens: int = Field(
        8192, ge=1, le=1_000_000, description="Length of the hot prompt; long, so that a miss is dear."
    )
    other_prompts: int = Field(
        100, ge=1, le=100_000, description="System prompts of the other requests, by Zipf's law."
    )
    other_tokens_low: int = Field(1024, ge=1, le=1_000_000, description="Shortest of the other prompts.")
    other_tokens_high: int = Field(6144, ge=1, le=1_000_000, description="Longest of the other prompts.")
    user_tokens: float = Field(
        400, ge=1, le=1_000_000, description="Median length of a request's own text; log-normal, sigma 0.9."
    )
    block_tokens: int = Field(128, ge=1, le=4096, description="Tokens in a block, as in the shipped trace.")


def generate_hotspot(options: HotspotOptions, seed: int) -> Trace:
    """Return `requests` requests, each a session of its own."""
    random = Random(seed)
    ids = BlockIds(options.block_tokens)
    hot = Context(ids).grown(options.hot_tokens)
    low, high = sorted((options.other_tokens_low, options.other_tokens_high))
    others = [Context(ids).grown(random.randint(low, high)) for _ in range(options.other_prompts)]
    popularity = Zipf(options.other_prompts)
    requests: list[TraceRequest] = []
    arrival = 0.0
    for session in range(options.requests):
        system = hot if random.random() < options.hot_share else others[popularity.draw(random)]
        prompt = system.grown(lognormal_tokens(random, options.user_tokens, 0.9, 32, 6000))
        output_tokens = lognormal_tokens(random, 110, 0.8, 8, 800)
        requests.append(prompt.request(arrival, output_tokens, str(session)))
        arrival += random.expovariate(options.requests_per_second)
    return Trace("hotspot", options.block_tokens, requests)
