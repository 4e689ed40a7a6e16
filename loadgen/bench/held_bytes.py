"""What an object keeps in memory, with all that only it leads to."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from types import BuiltinFunctionType, FunctionType, ModuleType

import numpy as np

# Code and classes are there anyway.
_SHARED = (type, ModuleType, FunctionType, BuiltinFunctionType)


def held_bytes(root: object, besides: Sequence[object] = ()) -> int:
    """Return the bytes of `root` and of everything that can be reached from it, each thing once.

    Classes, modules and functions do not count, nor what they lead to, nor what `besides` lead to.
    """
    seen: set[int] = set()
    for one in besides:
        _walk(one, seen)
    return _walk(root, seen)


def _walk(root: object, seen: set[int]) -> int:
    """Return the bytes of what is not in `seen`, and put it there."""
    waiting: list[object] = [root]
    total = 0
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, _SHARED):
            continue
        seen.add(id(one))
        total += sys.getsizeof(one)
        if isinstance(one, np.ndarray):
            # A view owns nothing: what it looks at does, and is not among its referents.
            if one.base is not None:
                waiting.append(one.base)
            continue
        waiting += gc.get_referents(one)
    return total
