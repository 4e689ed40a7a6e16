"""Valid bodies with a random part replaced, and bytes flipped: answered 200 or 4xx, never 5xx, never late."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

from tests.router.scripted import rig
from tests.tiny_tokenizer import write_tiny_tokenizer

_CHAT: dict[str, Any] = {
    "model": "m",
    "stream": False,
    "stream_options": {"include_usage": True},
    "max_tokens": 5,
    "temperature": 0.5,
    "cache_salt": "tenant",
    "chat_template_kwargs": {"enable_thinking": False},
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    "messages": [
        {"role": "system", "content": "You help."},
        {"role": "user", "content": [{"type": "text", "text": "Tell me about the sea."}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "1", "content": "salt"},
        {"role": "user", "content": "And the river?"},
    ],
}
_COMPLETION: dict[str, Any] = {
    "model": "m",
    "prompt": ["a", [1, 2, 3]],
    "stream": False,
    "add_special_tokens": True,
}
_VALUES: list[Any] = [
    None, True, False, 0, -1, 1e308, 2**63, 2**70, "", "x" * 3000, "\x00", "\u202e", "{{ 7 * 7 }}",
    "<|im_start|>", [], {}, [[]], [{}], [None], {"type": "text"}, {"role": "user"}, [1, "a"],
    {"": ""}, {"a": {"b": {"c": []}}},
]  # fmt: skip


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    places = [path] if path else []
    children = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, child in children:
        places += _places(child, (*path, key))
    return places


def mutated(draw: random.Random) -> tuple[str, bytes]:
    path, base = draw.choice((("/v1/chat/completions", _CHAT), ("/v1/completions", _COMPLETION)))
    body = copy.deepcopy(base)
    for _ in range(draw.choice((1, 1, 2, 4))):
        places = _places(body)
        if not places:
            break
        *above, last = draw.choice(places)
        holder = body
        for key in above:
            holder = holder[key]
        action = draw.random()
        if action < 0.2:
            del holder[last]
        else:
            holder[last] = copy.deepcopy(draw.choice(_VALUES))
    raw = json.dumps(body).encode()
    if draw.random() < 0.15:
        flipped = bytearray(raw)
        for _ in range(draw.choice((1, 3))):
            flipped[draw.randrange(len(flipped))] = draw.randrange(256)
        raw = bytes(flipped)
    return path, raw


async def test_no_mutation_is_a_server_error(tmp_path: Path) -> None:
    models = {"m": {"tokenizer_directory": str(write_tiny_tokenizer(tmp_path / "model"))}}
    draw = random.Random(2026)
    seen: dict[int, int] = {}
    async with rig(1, models=models) as up:
        for _ in range(1_000):
            path, raw = mutated(draw)
            status, answer, _ = await up.post(raw, path)
            assert status == 200 or 400 <= status < 500, (status, raw, answer)
            if status != 200:
                assert isinstance(json.loads(answer)["error"]["message"], str)
            seen[status] = seen.get(status, 0) + 1
        assert up.router.fleet.replicas[0].usable
        assert up.router.fleet.replicas[0].load.in_flight == 0
    # Both kinds are there in numbers, or the mutations prove nothing.
    assert min(seen[200], seen[400]) > 100
