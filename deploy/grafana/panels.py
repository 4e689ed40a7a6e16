"""Panels of a Grafana dashboard, laid out row by row; all take their data from one datasource variable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}

_COLUMNS = 24
_ROW_HEIGHT = 1


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel: `series` are expressions by what they are called. `unit` and `kind` are Grafana's names."""

    title: str
    told: str
    series: Mapping[str, str]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    height: int = 8
    stacked: bool = False
    most: float | None = None
    thresholds: Sequence[tuple[str, float | None]] = ()

    def __post_init__(self) -> None:
        if self.kind not in ("timeseries", "stat", "table") or not 0 < self.width <= _COLUMNS:
            raise ValueError(f"{self.title}: no such kind or width")


@dataclass(frozen=True, slots=True)
class Row:
    """A title, and the panels below it. A closed one is opened by a click."""

    title: str
    panels: Sequence[Panel]
    closed: bool = False


def read_rows(text: str) -> list[Row]:
    """Read rows from YAML; TypeError or ValueError where a panel is none."""
    return [
        Row(row["title"], [Panel(**panel) for panel in row["panels"]], row.get("closed", False))
        for row in yaml.safe_load(text)["rows"]
    ]


def laid_out(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the panels as Grafana has them, placed without gap or overlap, numbered from 1."""
    made: list[dict[str, Any]] = []
    number, y = 0, 0
    for row in rows:
        number += 1
        head: dict[str, Any] = {
            "id": number,
            "type": "row",
            "title": row.title,
            "collapsed": row.closed,
            "gridPos": {"x": 0, "y": y, "w": _COLUMNS, "h": _ROW_HEIGHT},
            "panels": [],
        }
        y += _ROW_HEIGHT
        placed, y = _placed(row.panels, y)
        bodies = []
        for panel, position in placed:
            number += 1
            bodies.append({"id": number, "gridPos": position, **_body(panel)})
        if row.closed:
            head["panels"] = bodies
            made.append(head)
        else:
            made += [head, *bodies]
    return made


def _placed(panels: Sequence[Panel], y: int) -> tuple[list[tuple[Panel, dict[str, int]]], int]:
    """Place panels from left to right, in lines as high as their highest; return also where they end."""
    placed = []
    x = line = 0
    for panel in panels:
        if x + panel.width > _COLUMNS:
            x, y, line = 0, y + line, 0
        placed.append((panel, {"x": x, "y": y, "w": panel.width, "h": panel.height}))
        x, line = x + panel.width, max(line, panel.height)
    return placed, y + line


def _body(panel: Panel) -> dict[str, Any]:
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.told,
        "datasource": DATASOURCE,
        "targets": [
            _target(panel, place, name, expression)
            for place, (name, expression) in enumerate(panel.series.items())
        ],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": _overrides(panel)},
        "options": _options(panel),
        **({"transformations": _one_table()} if panel.kind == "table" else {}),
    }


def _target(panel: Panel, place: int, name: str, expression: str) -> dict[str, Any]:
    table = panel.kind == "table"
    return {
        "refId": chr(ord("A") + place),
        "datasource": DATASOURCE,
        "expr": expression,
        "legendFormat": name or "__auto",
        "instant": table,
        "range": not table,
        "format": "table" if table else "time_series",
    }


def _defaults(panel: Panel) -> dict[str, Any]:
    steps = [{"color": color, "value": value} for color, value in panel.thresholds]
    defaults: dict[str, Any] = {
        "unit": panel.unit,
        "min": 0,
        "color": {"mode": "thresholds" if panel.kind == "stat" else "palette-classic"},
        "thresholds": {"mode": "absolute", "steps": steps or [{"color": "green", "value": None}]},
    }
    if panel.most is not None:
        defaults["max"] = panel.most
    if panel.kind == "timeseries":
        stacking = {"mode": "normal" if panel.stacked else "none", "group": "A"}
        defaults["custom"] = {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 40 if panel.stacked else 5,
            "showPoints": "never",
            "spanNulls": False,
            "stacking": stacking,
        }
    return defaults


def _overrides(panel: Panel) -> list[dict[str, Any]]:
    """Name a table's columns by their series; Grafana calls each by its query's letter."""
    if panel.kind != "table":
        return []
    overrides = []
    for place, name in enumerate(panel.series):
        title, _, unit = name.partition("|")
        properties: list[dict[str, Any]] = [{"id": "displayName", "value": title}]
        if unit:
            properties.append({"id": "unit", "value": unit})
        matcher = {"id": "byName", "options": f"Value #{chr(ord('A') + place)}"}
        overrides.append({"matcher": matcher, "properties": properties})
    return overrides


def _options(panel: Panel) -> dict[str, Any]:
    if panel.kind == "stat":
        calculated = {"calcs": ["lastNotNull"], "fields": "", "values": False}
        return {"reduceOptions": calculated, "colorMode": "value", "graphMode": "area", "textMode": "auto"}
    if panel.kind == "table":
        return {"showHeader": True, "cellHeight": "sm"}
    return {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }


def _one_table() -> list[dict[str, Any]]:
    """Merge what several queries tell of the same labels into one line, and leave the time out."""
    return [
        {"id": "merge", "options": {}},
        {"id": "organize", "options": {"excludeByName": {"Time": True}, "indexByName": {}}},
    ]
