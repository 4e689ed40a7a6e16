"""Copies alerts and dashboard from deploy/ into the chart, as a chart cannot reach outside its own folder.

    python helm/write_files.py [--check]

With --check nothing is written, and exit 1 tells which copy is out of step.
"""

from __future__ import annotations

import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
_FILES = _ROOT / "helm" / "kvring" / "files"
_SOURCES = (
    _ROOT / "deploy" / "prometheus" / "kvring.rules.yaml",
    _ROOT / "deploy" / "grafana" / "kvring.json",
)


def main() -> None:
    """Bring the copies up to date, or tell whether they are."""
    for source in _SOURCES:
        target = _FILES / source.name
        same = target.exists() and target.read_bytes() == source.read_bytes()
        if "--check" in sys.argv[1:]:
            if not same:
                sys.exit(f"{target} is out of step: run python helm/write_files.py")
        elif not same:
            target.write_bytes(source.read_bytes())


if __name__ == "__main__":
    main()
