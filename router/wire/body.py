"""Request bodies: strict JSON with limits, as a dictionary or a clear error."""

from __future__ import annotations

from typing import Any

import orjson

from router.wire.errors import ApiError

MAX_NESTING = 100


def parse_body(raw: bytes) -> dict[str, Any]:
    """Parse a JSON object; ApiError 400 for anything else, a lone surrogate, NaN, or nesting too deep."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise ApiError(400, f"the body is not valid JSON: {error}", code="invalid_json") from error
    if not isinstance(body, dict):
        raise ApiError(400, "the body must be a JSON object", code="invalid_json")
    # Fewer brackets than levels: the usual case, told by two scans in C.
    if raw.count(b"[") + raw.count(b"{") > MAX_NESTING and _depth_exceeds(body, MAX_NESTING):
        raise ApiError(400, f"the body is nested deeper than {MAX_NESTING} levels", code="invalid_json")
    return body


def _depth_exceeds(body: object, limit: int) -> bool:
    level: list[object] = [body]
    for _ in range(limit):
        deeper: list[object] = []
        for value in level:
            if isinstance(value, dict):
                deeper += [item for item in value.values() if isinstance(item, dict | list)]
            elif isinstance(value, list):
                deeper += [item for item in value if isinstance(item, dict | list)]
        if not deeper:
            return False
        level = deeper
    return True
