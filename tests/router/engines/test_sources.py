"""Addresses of KV events."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.config import EventOptions
from router.engines.sources import address, by_options, by_ports, resolved, source


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        ("tcp://*:5557", "tcp://host:5557"),
        ("tcp://0.0.0.0:5557", "tcp://host:5557"),
        ("tcp://[::]:5557", "tcp://host:5557"),
        ("tcp://:::5557", "tcp://host:5557"),
        ("tcp://10.0.0.1:5557", "tcp://10.0.0.1:5557"),
        ("tcp://[fd00::1]:5557", "tcp://[fd00::1]:5557"),
        ("tcp://pod-0.pods:5557", "tcp://pod-0.pods:5557"),
        ("ipc:///tmp/x", ""),
        ("inproc://x", ""),
        ("tcp://*:0", ""),
        ("tcp://*:70000", ""),
        ("tcp://*", ""),
        ("tcp://a;tcp://b:1", ""),
        ("tcp://a b:1", ""),
        (None, ""),
        (7, ""),
    ],
)
def test_wildcards_become_the_host(endpoint: object, expected: str) -> None:
    assert resolved(endpoint, "host") == expected


def test_addresses_of_version_six_have_brackets() -> None:
    assert address("fd00::7", 1) == address("[fd00::7]", 1) == "tcp://[fd00::7]:1"
    with pytest.raises(ValueError, match="port"):
        address("h", 65_536)


def test_ranks_have_ports_of_their_own() -> None:
    two = by_ports("h", 5557, 6557, "t", 2)
    assert [(one.endpoint, one.replay_endpoint, one.topic) for one in two] == [
        ("tcp://h:5557", "tcp://h:6557", "t"),
        ("tcp://h:5558", "tcp://h:6558", "t"),
    ]
    assert by_ports("h", 5557, 0, None, 1)[0].replay_endpoint == ""
    for ranks in (0, 257):
        with pytest.raises(ValueError, match="ranks"):
            by_ports("h", 5557, 0, "", ranks)


def test_nothing_is_assumed_unless_asked_for() -> None:
    assert by_options("h", EventOptions(), 1) == ()
    assert by_options("h", EventOptions(source="sidecar"), 1) == ()
    assert len(by_options("h", EventOptions(source="replica"), 0)) == 1


def test_topics_are_text() -> None:
    assert source("e", "", None).topic == ""
    for odd in (7, "x" * 201):
        with pytest.raises(ValueError, match="topic"):
            source("e", "", odd)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=40))
def test_whatever_is_told_is_an_address_or_none(text: str) -> None:
    for endpoint in (text, "tcp://" + text, f"tcp://{text}:5557"):
        found = resolved(endpoint, "host")
        assert found == "" or found.startswith("tcp://")
        assert " " not in found
