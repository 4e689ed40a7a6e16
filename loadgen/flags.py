"""Flags of the router and the replica: `--set dotted.name=value` pairs, and named flags over them."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable
from typing import Any

import click

from router.settings import flag_tree


def read_flags(sets: Iterable[str], named: dict[str, Any]) -> dict[str, Any]:
    """Nest `sets` and then `named` (dotted names; None is left out), later ones over earlier ones."""
    tree: dict[str, Any] = {}
    for pair in sets:
        _merge(tree, _read_set(pair))
    _merge(tree, flag_tree(named))
    return tree


def _read_set(pair: str) -> dict[str, Any]:
    """Read one pair; the value is TOML (`8080`, `true`, `["a"]`), or else text as it stands.

    The name is a TOML key, so that a part with a dot in it can be quoted.
    """
    name, equals, value = pair.partition("=")
    if not equals or not name.strip() or "\n" in name:
        raise click.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint="--set")
    try:
        parsed = tomllib.loads(f"value = {value}")
        if len(parsed) == 1:
            return tomllib.loads(f"{name} = {value}")
    except tomllib.TOMLDecodeError:
        pass
    try:
        return tomllib.loads(f"{name} = {json.dumps(value)}")
    except tomllib.TOMLDecodeError as error:
        raise click.BadParameter(f"{name!r} is not a dotted name", param_hint="--set") from error


def _merge(tree: dict[str, Any], over: dict[str, Any]) -> None:
    for name, value in over.items():
        below = tree.get(name)
        if isinstance(below, dict) and isinstance(value, dict):
            _merge(below, value)
        else:
            tree[name] = value
