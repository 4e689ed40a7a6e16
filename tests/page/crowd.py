"""A crowd: what a router tells of one replica, told of hundreds, each in its own state."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from typing import Any

_STATES = ("ready",) * 12 + ("warming", "draining", "suspect", "down")


def crowd(told: dict[str, Any], count: int) -> dict[str, Any]:
    """Return what `/debug/fleet` told, with its first replica made `count` ones that differ."""
    one, crowded = told["replicas"][0], deepcopy(told)
    crowded["replicas"] = [_like(one, number) for number in range(count)]
    crowded["states"] = Counter(replica["state"] for replica in crowded["replicas"])
    for name in ("requests", "prompt_tokens", "expected_tokens", "hit_tokens"):
        crowded["totals"][name] = sum(replica[name] for replica in crowded["replicas"])
    crowded["totals"]["uncached"] = {
        "cold": sum(replica["uncached"]["cold"] for replica in crowded["replicas"]),
        "routed_by_load": sum(replica["uncached"]["routed_by_load"] for replica in crowded["replicas"]),
    }
    return crowded


def _like(one: dict[str, Any], number: int) -> dict[str, Any]:
    requests = 40 + number * 37 % 61
    prompt, hit = 900 * requests, (500 + number * 53 % 300) * requests
    return {
        **one,
        "name": f"replica-{number}",
        "state": _STATES[number % len(_STATES)],
        "wait_seconds": number * 29 % 256 / 100,
        "kv_usage": number * 17 % 100 / 100,
        "running": number % 7,
        "waiting": number % 3,
        "requests": requests,
        "prompt_tokens": prompt,
        "expected_tokens": hit + 40 * requests,
        "hit_tokens": hit,
        "uncached": {
            "cold": (prompt - hit) * 3 // 4,
            "routed_by_load": prompt - hit - (prompt - hit) * 3 // 4,
        },
        "digest_age_seconds": number % 50 / 10,
    }
