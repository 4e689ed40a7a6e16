"""Options of what is shared through Redis: a url that cannot be used is refused for what is wrong with it."""

from __future__ import annotations

import pytest

from router.config import RouterConfig
from router.settings import SettingsError


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("redis://h:notaport", "no port from 1 to 65535"),
        ("redis://h:99999/0", "no port from 1 to 65535"),
        ("redis://h:0", "no port from 1 to 65535"),
        ("rediss://user:hunter2@h:64k", "no port from 1 to 65535"),
        ("redis://:hunter2/3@h:6379", "percent-encoded"),
        ("redis://::1:6379", "in brackets"),
        ("redis://[::1:6379", "in brackets"),
    ],
)
def test_a_port_that_is_none_is_told(url: str, told: str) -> None:
    with pytest.raises(SettingsError) as caught:
        RouterConfig.load(flags={"redis": {"url": url}})
    assert str(caught.value).startswith("redis.url: ")
    assert told in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    ["", "redis://h", "redis://h:6379/1", "rediss://u:p%2F@[::1]:6380", "unix:///run/redis.sock?db=1"],
)
def test_urls_that_redis_takes_are_taken(url: str) -> None:
    assert RouterConfig.load(flags={"redis": {"url": url}}).redis.url.get_secret_value() == url
