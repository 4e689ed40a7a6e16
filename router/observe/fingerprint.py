"""What runs here: the release, and a fingerprint of the options, which routers of one fleet share."""

from __future__ import annotations

from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version

import orjson

from router.config import RouterConfig

_DIGITS = 8


def config_fingerprint(config: RouterConfig) -> str:
    """Return eight hexadecimal digits of all options that decide what a router does.

    Where it listens is its own affair, and a run's name says nothing of it. A seed is a secret, of which not
    even a hash is told; other secrets are masked by their type.
    """
    told = config.model_dump(
        mode="json", exclude={"listen": True, "control": True, "observe": {"run"}, "chain": {"seed"}}
    )
    return sha256(orjson.dumps(told, option=orjson.OPT_SORT_KEYS, default=str)).hexdigest()[:_DIGITS]


def release() -> str:
    """Return the installed version, empty where it runs from a folder."""
    try:
        return version("kvring")
    except PackageNotFoundError:
        return ""
