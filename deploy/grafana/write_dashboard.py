"""Writes the Grafana dashboard from rows.yaml: python deploy/grafana/write_dashboard.py [--check]

With --check nothing is written, and exit 1 tells that kvring.json is out of step.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from deploy.grafana.panels import DATASOURCE, laid_out, read_rows

_FILE = Path(__file__).with_name("kvring.json")
_ROWS = Path(__file__).with_name("rows.yaml")
_SCHEMA_VERSION = 39
_RELOADS = 'sum by (instance) (increase(kvring_config_reloads_total{job=~"$job", result="taken"}[1m])) > 0'


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
    return {
        "uid": "kvring",
        "title": "kvring",
        "description": "Traffic, hits by turn and by run, load of replicas, and why prompts missed.",
        "tags": ["kvring", "llm"],
        "schemaVersion": _SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": [_reloads()]},
        "templating": {"list": _variables()},
        "links": [],
        "panels": laid_out(read_rows(_ROWS.read_text())),
    }


def _reloads() -> dict[str, Any]:
    return {
        "name": "Options changed",
        "datasource": DATASOURCE,
        "enable": True,
        "iconColor": "blue",
        "expr": _RELOADS,
        "step": "60s",
        "titleFormat": "{{instance}} took changed options",
    }


def _variables() -> list[dict[str, Any]]:
    source = {
        "name": "datasource",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
        "current": {},
        "hide": 0,
        "refresh": 1,
    }
    return [
        source,
        _variable("job", "Job", "label_values(kvring_info, job)"),
        _variable("model", "Model", 'label_values(kvring_model_requests_total{job=~"$job"}, model)'),
        _variable("replica", "Replica", 'label_values(kvring_replica_usable{job=~"$job"}, replica)'),
    ]


def _variable(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "definition": query,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def main(arguments: Sequence[str]) -> int:
    """Write the file, or compare it."""
    written = json.dumps(dashboard(), indent=2) + "\n"
    if "--check" in arguments:
        return 0 if _FILE.read_text() == written else 1
    _FILE.write_text(written)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
