"""A fingerprint tells options apart, and gives away none that is secret."""

from __future__ import annotations

from typing import Any

import pytest

from router.config import RouterConfig
from router.observe.fingerprint import config_fingerprint


def fingerprint(**flags: Any) -> str:
    return config_fingerprint(RouterConfig.load(flags=flags))


@pytest.mark.parametrize(
    "flags",
    [
        {"listen": {"port": 9999, "host": "0.0.0.0"}},
        {"control": {"port": 9998}},
        {"observe": {"run": "monday"}},
        {"chain": {"seed": "secret"}},
    ],
)
def test_what_is_ones_own_or_secret_does_not_show(flags: dict[str, Any]) -> None:
    assert fingerprint(**flags) == fingerprint()


@pytest.mark.parametrize(
    "flags",
    [
        {"policy": {"name": "round_robin"}},
        {"policy": {"options": {"near_tie_seconds": 0.5}}},
        {"limits": {"attempts": 2}},
        {"chain": {"block_tokens": 32}},
        {"fleet": {"replicas": [{"name": "r", "url": "http://10.0.0.1:1"}]}},
    ],
)
def test_what_decides_shows(flags: dict[str, Any]) -> None:
    assert fingerprint(**flags) != fingerprint()


def test_the_password_of_redis_is_not_in_it() -> None:
    one, other = ({"redis": {"url": f"redis://:{word}@127.0.0.1"}} for word in ("a", "b"))
    assert fingerprint(**one) == fingerprint(**other)
