"""`--set` pairs and named flags become one nested table."""

from __future__ import annotations

from typing import Any

import click
import pytest

from loadgen.flags import read_flags


@pytest.mark.parametrize(
    ("pair", "tree"),
    [
        ("listen.port=8080", {"listen": {"port": 8080}}),
        ("observe.response_headers=false", {"observe": {"response_headers": False}}),
        ("limits.connect_seconds = 0.5", {"limits": {"connect_seconds": 0.5}}),
        ("policy.name=round_robin", {"policy": {"name": "round_robin"}}),
        ('policy.name="round_robin"', {"policy": {"name": "round_robin"}}),
        ("name=10.0.0.1", {"name": "10.0.0.1"}),
        ("name=", {"name": ""}),
        ("name=a=b", {"name": "a=b"}),
        ("name=1\nother=2", {"name": "1\nother=2"}),
        ('models."qwen2.5".tokenizer_directory=/m', {"models": {"qwen2.5": {"tokenizer_directory": "/m"}}}),
        ("policy.options={load_factor=1.2}", {"policy": {"options": {"load_factor": 1.2}}}),
    ],
)
def test_values_are_toml_or_text(pair: str, tree: dict[str, Any]) -> None:
    assert read_flags([pair], {}) == tree


@pytest.mark.parametrize("pair", ["", "name", "=1", "a b=1", "a..b=1", "a\nb=1", "[a]=1"])
def test_what_is_no_pair(pair: str) -> None:
    with pytest.raises(click.BadParameter):
        read_flags([pair], {})


def test_later_ones_go_before_earlier_ones_and_named_flags_before_all() -> None:
    sets = ["listen.port=1", "listen.host=a", "listen.port=2", "policy.name=x"]
    assert read_flags(sets, {"policy.name": "y", "listen.host": None}) == {
        "listen": {"port": 2, "host": "a"},
        "policy": {"name": "y"},
    }
    assert read_flags(["listen=1", "listen.port=2"], {}) == {"listen": {"port": 2}}
