"""The fingerprint of a router's options: what compares runs; routers of one fleet have the same."""

from __future__ import annotations

from hashlib import sha256

import orjson

from router.config import RouterConfig

# Where a router listens is its own affair, and the name of a run says nothing about it; a seed is a secret,
# of which not even a hash is told. Other secrets are masked by their type.
_LEFT_OUT = {"listen": True, "control": True, "observe": {"run": True}, "chain": {"seed": True}}
_DIGITS = 8


def config_fingerprint(config: RouterConfig) -> str:
    """Return eight hexadecimal digits of all options that decide what a router does."""
    told = config.model_dump(mode="json", exclude=_LEFT_OUT)
    return sha256(orjson.dumps(told, option=orjson.OPT_SORT_KEYS, default=str)).hexdigest()[:_DIGITS]
