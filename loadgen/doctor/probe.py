"""Sends a few small requests, as a client would: what comes from cache, and when the tokens come."""

from __future__ import annotations

from secrets import token_hex
from urllib.parse import urlsplit

from loadgen.client import Answer, Client, ClientLimits
from loadgen.doctor.evidence import StreamSeen, Trial
from loadgen.doctor.reach import shown

REQUESTS = 3
"""Sent for one model at most."""
PROMPT_WORDS = 300
"""About as many tokens: several blocks of any engine."""

_ANSWER_TOKENS = 48
_LIMITS = ClientLimits(connect_seconds=3, idle_seconds=30, total_seconds=60)
_TASK = "Count from one to forty, in words, and then say what the text above is about."
_WORDS = ("river", "lantern", "copper", "meadow", "harbour", "violin", "winter", "garden", "thunder", "paper")


async def try_model(url: str, model: str, api_key: str | None, direct_url: str) -> Trial:
    """Send the same prompt twice to `url`; where its tokens came all together, once more to `direct_url`."""
    messages = [
        # A prompt that nobody has cached, so that the second time speaks for the first.
        {"role": "system", "content": f"{token_hex(8)} " + " ".join(_WORDS * (PROMPT_WORDS // len(_WORDS)))},
        {"role": "user", "content": _TASK},
    ]
    body = {"model": model, "messages": messages, "max_tokens": _ANSWER_TOKENS, "temperature": 0}
    session = f"kvring-doctor-{token_hex(8)}"
    async with Client(url, _LIMITS, api_key) as client:
        first = _seen(url, await client.ask(body, session), api_key)
        if first.problem:
            return Trial(model, first)
        second = _seen(url, await client.ask(body, session), api_key)
    direct: StreamSeen | None = None
    if direct_url and direct_url != url and first.at_once and second.at_once:
        # A key of the gateway's is no affair of who else is asked.
        key = api_key if urlsplit(direct_url).hostname == urlsplit(url).hostname else None
        async with Client(direct_url, _LIMITS, key) as client:
            direct = _seen(direct_url, await client.ask(body, session), key)
    return Trial(model, first, second, direct)


def _seen(url: str, answer: Answer, key: str | None) -> StreamSeen:
    # Some servers repeat the key that they refuse.
    message = answer.message.replace(key, "***") if key else answer.message
    return StreamSeen(
        url=shown(url),
        replica=answer.replica or "",
        problem=f"{answer.error}: {message[:200]}" if answer.error else "",
        prompt_tokens=answer.prompt_tokens,
        cached_tokens=answer.cached_tokens,
        answer_tokens=len(answer.gaps_seconds) + (answer.first_token_seconds is not None),
        first_seconds=answer.first_token_seconds or 0.0,
        total_seconds=answer.total_seconds,
    )
