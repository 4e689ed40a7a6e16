"""Request bodies: strict JSON with limits, as a dictionary or a clear error."""

from __future__ import annotations

from itertools import chain
from typing import Any

import orjson

from router.wire.errors import ApiError

MAX_NESTING = 100
_SHORT_BYTES = 1024


def brackets_in(raw: bytes, most: int) -> int:
    """Count the objects and lists of a body, and such signs in its texts; `most` at the most."""
    if len(raw) <= _SHORT_BYTES:
        return min(most, raw.count(b"[") + raw.count(b"{"))
    count = 0
    for bracket in b"[{":
        # To find is a scan at the speed of memory, to count a loop over bytes.
        at = raw.find(bracket)
        while at >= 0:
            count += 1
            if count == most:
                return count
            at = raw.find(bracket, at + 1)
    return count


def parse_body(raw: bytes, brackets: int | None = None) -> dict[str, Any]:
    """Parse a JSON object; ApiError 400 for anything else, a lone surrogate, NaN, or nesting too deep.

    `brackets` is what `brackets_in` counted, if that has been done.
    """
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise ApiError(400, f"the body is not valid JSON: {error}", code="invalid_json") from error
    if not isinstance(body, dict):
        raise ApiError(400, "the body must be a JSON object", code="invalid_json")
    if brackets is None:
        brackets = brackets_in(raw, MAX_NESTING + 1)
    # Fewer brackets than levels is the usual case.
    if brackets > MAX_NESTING and _depth_exceeds(body, MAX_NESTING):
        raise ApiError(400, f"the body is nested deeper than {MAX_NESTING} levels", code="invalid_json")
    return body


def _depth_exceeds(body: dict[str, Any], limit: int) -> bool:
    dicts, lists = [body], list[list[object]]()
    for _ in range(limit):
        # Conversations have hundreds of small objects: C walks over their values.
        values = [*chain.from_iterable(map(dict.values, dicts)), *chain.from_iterable(lists)]
        kinds = set(map(type, values))
        if dict not in kinds and list not in kinds:
            return False
        dicts = [value for value in values if type(value) is dict]
        lists = [value for value in values if type(value) is list]
    return True
