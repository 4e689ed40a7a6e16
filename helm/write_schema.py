"""Writes the options of both programs into the chart's schema, so that a typo among them is refused.

    python helm/write_schema.py [--check]

The rest of the schema is written by hand, its definitions called chart.NAME. With --check nothing is
written, and exit 1 tells that it is out of step.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from replica.options import ReplicaOptions
from router.config import RouterConfig

_SCHEMA = Path(__file__).parent / "kvring" / "values.schema.json"
# What the chart sets itself: a replica's name is its pod's, its chain the routers'.
_OF_THE_CHART = {"router": (), "replica": ("name", "chain")}


def completed(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the chart's schema with the programs' options as they are now."""
    own = {name: found for name, found in schema["$defs"].items() if name.startswith("chart.")}
    definitions = {
        **own,
        **_definitions("router", RouterConfig),
        **_definitions("replica", ReplicaOptions),
    }
    return {**schema, "$defs": definitions}


def _definitions(program: str, options: type[BaseModel]) -> dict[str, Any]:
    own = options.model_json_schema(ref_template=f"#/$defs/{program}.{{model}}")
    inner = own.pop("$defs")
    for name in _OF_THE_CHART[program]:
        del own["properties"][name]
    found = {program: own, **{f"{program}.{name}": definition for name, definition in inner.items()}}
    return {name: _without_titles(definition) for name, definition in found.items()}


def _without_titles(node: Any) -> Any:
    """Titles only repeat names; a table of properties may have one called so."""
    if isinstance(node, list):
        return [_without_titles(item) for item in node]
    if not isinstance(node, dict):
        return node
    return {
        key: _without_titles(value)
        for key, value in node.items()
        if not (key == "title" and isinstance(value, str))
    }


def main() -> None:
    """Bring the file up to date, or tell whether it is."""
    before = _SCHEMA.read_text()
    after = json.dumps(completed(json.loads(before)), indent=2, ensure_ascii=False) + "\n"
    if "--check" in sys.argv[1:]:
        sys.exit(None if before == after else f"{_SCHEMA} is out of step: run python helm/write_schema.py")
    _SCHEMA.write_text(after)


if __name__ == "__main__":
    main()
