"""Cuts a stream where one likes, and lets a replica go on with it, as a router does."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import orjson

from router.engines.journal import Journal
from router.wire.sse import DONE, EventCutter, event_data
from tests.replica.conftest import Client

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"


@dataclass(frozen=True)
class Told:
    """What a stream says, however it was cut into events."""

    ids: frozenset[tuple[str, int, str]]
    text: str
    roles: int
    reasons: tuple[str, ...]
    usages: tuple[tuple[int, int, int], ...]


def told(events: list[bytes]) -> Told:
    """Read a whole stream, which must end with [DONE]."""
    assert events[-1] == DONE
    assert events.count(DONE) == 1
    chunks = [orjson.loads(event_data(event) or b"") for event in events[:-1]]
    assert not any("error" in chunk for chunk in chunks), chunks
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert not any("token_ids" in choice for choice in choices)
    usages = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
    return Told(
        frozenset((chunk["id"], chunk["created"], chunk["object"]) for chunk in chunks),
        "".join(one["text"] if "text" in one else one["delta"].get("content", "") for one in choices),
        sum("role" in one.get("delta", {}) for one in choices),
        tuple(one["finish_reason"] for one in choices if one["finish_reason"]),
        tuple((one["prompt_tokens"], one["completion_tokens"], one["total_tokens"]) for one in usages),
    )


async def events_of(client: Client, path: str, body: bytes) -> list[bytes]:
    """Post a request as it is; return the events of its stream."""
    cutter = EventCutter()
    headers = {"content-type": "application/json"}
    async with client.http.stream("POST", path, content=body, headers=headers) as response:
        if response.status_code != 200:
            raise AssertionError((await response.aread()).decode())
        return [event async for chunk in response.aiter_raw() for event in cutter.feed(chunk)]


def asking(fields: dict[str, Any]) -> bytes:
    """Return the body of a stream that asks for usage and, as a router does, for token ids."""
    fields = {"model": "m", "stream": True, "stream_options": {"include_usage": True}, **fields}
    return json.dumps(fields).encode()


def with_ids(raw: bytes) -> bytes:
    """Return a body that asks for token ids."""
    return b"{" + Journal.asks + raw[1:]


async def cut_at(client: Client, path: str, raw: bytes, events: list[bytes], cut: int) -> list[bytes]:
    """Return what a client sees whose replica died after `cut` of these `events`, and `client`'s went on."""
    journal = Journal(path)
    seen = [journal.take(event) for event in events[:cut]]
    closing = journal.closing()
    if closing is not None:
        return seen + closing
    again = journal.resume("kvring", raw, b"", None)
    assert again is not None
    return seen + [journal.take(event) for event in await events_of(client, again[0], b"".join(again[1]))]
