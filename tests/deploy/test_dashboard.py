"""The Grafana dashboard: well-formed, every expression answered by a real Prometheus over real routers."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from time import time
from typing import Any

import pytest

from deploy.grafana.panels import read_rows
from deploy.grafana.write_dashboard import dashboard, main
from tests.deploy.test_prometheus import RULES
from tests.integration.fleets import MODEL, LiveFleet, live_fleet
from tests.prometheus_server import PrometheusServer, prometheus_server

_FILE = Path(__file__).parents[2] / "deploy" / "grafana" / "kvring.json"
_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_VARIABLES = {
    "$__rate_interval": "10s",
    "$__range": "1m",
    "$job": ".*",
    "$model": ".*",
    "$replica": ".*",
}
# What shows only trouble, waits, Redis, discovery or hand-overs: there is none of it in a quiet fleet. Of
# panels with several curves, those that may be empty are named.
_MAY_BE_EMPTY = {
    ("Wait for a usable replica, p95", ""),
    ("Turned away and sent on", "shed: {{reason}}"),
    ("Turned away and sent on", "sent on: {{reason}}"),
    ("Discovery and Redis", "Redis"),
    ("Options read anew, and prefixes handed over", "prefixes {{result}}"),
    ("Shadows that failed or skipped", "{{shadow}} failed"),
    ("Shadows that failed or skipped", "{{shadow}} skipped"),
    ("Turns that would have moved", "{{shadow}}: {{course}}"),
}


def panels(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every panel but rows, also those of closed rows."""
    for panel in board["panels"]:
        yield from panel.get("panels", ()) if panel["type"] == "row" else (panel,)


def test_the_file_is_what_its_rows_say() -> None:
    assert main(["--check"]) == 0
    assert json.loads(_FILE.read_text()) == dashboard()


def test_numbers_are_unique_and_nothing_overlaps() -> None:
    board = dashboard()
    everything = [*board["panels"], *(one for row in board["panels"] for one in row.get("panels", ()))]
    numbers = [panel["id"] for panel in everything]
    assert len(set(numbers)) == len(numbers)
    taken: dict[tuple[int, int], str] = {}
    for panel in everything:
        at = panel["gridPos"]
        assert at["x"] >= 0
        assert at["x"] + at["w"] <= 24
        for x in range(at["x"], at["x"] + at["w"]):
            for y in range(at["y"], at["y"] + at["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]


def test_everything_asks_the_datasource_that_is_chosen() -> None:
    board = dashboard()
    variables = {one["name"]: one for one in board["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    for name in ("job", "model", "replica"):
        assert variables[name]["datasource"] == _DATASOURCE
    assert all(one["datasource"] == _DATASOURCE for one in board["annotations"]["list"])
    for panel in panels(board):
        assert panel["datasource"] == _DATASOURCE
        assert panel["targets"]
        assert all(target["datasource"] == _DATASOURCE for target in panel["targets"])
        letters = [target["refId"] for target in panel["targets"]]
        assert len(set(letters)) == len(letters)


def test_every_panel_is_told_and_asks_by_the_chosen_job() -> None:
    for panel in panels(dashboard()):
        assert panel["description"].endswith(".")
        for target in panel["targets"]:
            assert set(re.findall(r"\$\w+", target["expr"])) <= set(_VARIABLES)
            assert "$job" in target["expr"] or "ALERTS" in target["expr"], target["expr"]


def test_a_panel_that_cannot_be_drawn_is_refused() -> None:
    told = "rows: [{title: a, panels: [{title: b, told: c., series: {x: up}, %s}]}]"
    assert read_rows(told % "width: 24")[0].panels[0].width == 24
    with pytest.raises(ValueError):
        read_rows(told % "width: 25")
    with pytest.raises(ValueError):
        read_rows(told % "kind: pie")
    with pytest.raises(TypeError):
        read_rows(told % "colour: red")


async def converse(fleet: LiveFleet, router: int, number: int) -> None:
    """A streamed conversation of five turns, a completion, and a request for a model that nobody serves."""
    url = fleet.routers[router].address
    messages: list[dict[str, str]] = []
    for turn in range(5):
        messages.append(
            {"role": "user", "content": f"Conversation {number}, turn {turn}. " + "All about it. " * 12}
        )
        body = {"model": MODEL, "messages": messages, "max_tokens": 8, "stream": True}
        async with fleet.session.post(f"{url}/v1/chat/completions", json=body) as response:
            assert response.status == 200
            await response.read()
        messages.append({"role": "assistant", "content": "Very well. "})
    async with fleet.session.post(
        f"{url}/v1/completions", json={"model": MODEL, "prompt": "Once"}
    ) as response:
        assert response.status == 200
    async with fleet.session.post(f"{url}/v1/completions", json={"model": "x", "prompt": "a"}) as response:
        assert response.status == 404


async def scraped_anew(prometheus: PrometheusServer, fleet: LiveFleet) -> None:
    """Wait until every router was scraped after this moment."""
    routers = len(fleet.routers)
    now = time()
    await prometheus.until(f"count(timestamp(kvring_info) > {now}) == {routers}")


def substituted(expression: str) -> str:
    for name, value in _VARIABLES.items():
        expression = expression.replace(name, value)
    return expression


async def test_a_real_prometheus_answers_every_expression() -> None:
    shadow = [{"name": "even", "policy": "round_robin", "sample_share": 1.0}]
    first = {"access_log": False, "run": "monday", "shadow": shadow, "layout": {"sample_share": 1.0}}
    second = {"access_log": False, "run": "tuesday"}
    async with live_fleet(3, observe=first) as fleet:
        router = await fleet.add_router(observe=second, policy={"name": "round_robin"})
        try:
            addresses = [one.address for one in fleet.routers]
            async with prometheus_server(addresses, RULES) as prometheus:
                await _fill(prometheus, fleet)
                await _ask_all(prometheus)
                await _check_rules(prometheus)
        finally:
            await router.stop()


async def _fill(prometheus: PrometheusServer, fleet: LiveFleet) -> None:
    """Send traffic, some of it after it was first scraped, so that there are rates."""
    for round_number in range(3):
        for router in range(len(fleet.routers)):
            for number in range(3):
                await converse(fleet, router, 100 * round_number + 10 * router + number)
        await scraped_anew(prometheus, fleet)
    await prometheus.until("count(count_over_time(run:kvring_hit_tokens:rate5m[1m]) > 2) == 2")


async def _ask_all(prometheus: PrometheusServer) -> None:
    empty = set()
    for panel in panels(dashboard()):
        for target in panel["targets"]:
            found = await prometheus.query(substituted(target["expr"]))
            place = (panel["title"], target["legendFormat"].removeprefix("__auto"))
            for series in found:
                for label in re.findall(r"{{(\w+)}}", target["legendFormat"]):
                    assert label in series["metric"], place
            if not any(math.isfinite(float(series["value"][1])) for series in found):
                empty.add(place)
    assert empty <= _MAY_BE_EMPTY
    for one in dashboard()["annotations"]["list"]:
        await prometheus.query(substituted(one["expr"]))
    await _check_runs(prometheus)


async def _check_runs(prometheus: PrometheusServer) -> None:
    """The comparison of runs tells them apart, by figures that make sense."""
    table = next(panel for panel in panels(dashboard()) if panel["title"] == "Runs over the time shown")
    columns = {target["legendFormat"]: substituted(target["expr"]) for target in table["targets"]}
    hits = {}
    for series in await prometheus.query(columns["hit ratio of later turns|percentunit"]):
        hits[series["metric"]["run"], series["metric"]["policy"]] = float(series["value"][1])
    # Each turn on the next of three replicas finds at best what the turn before the last but one left.
    assert hits["monday", "affinity"] > hits["tuesday", "round_robin"]


async def _check_rules(prometheus: PrometheusServer) -> None:
    _, answer = await prometheus.ask("/api/v1/rules")
    for group in answer["data"]["groups"]:
        for rule in group["rules"]:
            assert rule["health"] == "ok", f"{rule['name']}: {rule.get('lastError')}"
    assert not await prometheus.query('ALERTS{severity="critical"}')


async def test_variables_have_values() -> None:
    async with live_fleet(2) as fleet, prometheus_server([fleet.routers[0].address], RULES) as prometheus:
        await converse(fleet, 0, 0)
        await scraped_anew(prometheus, fleet)
        expected = {"job": {"kvring"}, "model": {MODEL, "other"}, "replica": {"r0", "r1"}}
        for variable in dashboard()["templating"]["list"][1:]:
            selector, label = (
                variable["query"]["query"].removeprefix("label_values(").rstrip(")").rsplit(", ", 1)
            )
            _, answer = await prometheus.ask(
                f"/api/v1/label/{label}/values", **{"match[]": substituted(selector)}
            )
            assert set(answer["data"]) == expected[variable["name"]]
