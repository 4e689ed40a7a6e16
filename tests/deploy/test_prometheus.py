"""The rules for Prometheus: they parse, each alert fires in its case, and says what to do."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.fleets import MODEL, live_fleet
from tests.prometheus_server import program

_PROMETHEUS = Path(__file__).parents[2] / "deploy" / "prometheus"
RULES = _PROMETHEUS / "kvring.rules.yaml"
_TESTS = _PROMETHEUS / "kvring.rules.test.yaml"


def promtool(*arguments: str, page: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program("promtool"), *arguments],
        input=page,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=_PROMETHEUS,
    )


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    return [rule for rule in rules() if "alert" in rule]


def test_the_rules_parse() -> None:
    done = promtool("check", "rules", str(RULES))
    assert done.returncode == 0, done.stderr


def test_each_alert_fires_in_its_case_and_stays_quiet_else() -> None:
    done = promtool("test", "rules", str(_TESTS))
    assert done.returncode == 0, done.stdout + done.stderr


def test_there_is_a_case_for_each_alert() -> None:
    cases = [
        expected["labels"]
        for test in yaml.safe_load(_TESTS.read_text())["tests"]
        for expression in test["promql_expr_test"]
        for expected in expression["exp_samples"]
    ]
    fired = {found[1] for labels in cases if (found := re.search(r'alertname="(\w+)"', labels))}
    assert fired == {rule["alert"] for rule in alerts()}


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: str(rule["alert"]))
def test_an_alert_says_how_bad_it_is_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("info", "warning", "critical")
    assert rule["for"]
    summary, description = rule["annotations"]["summary"], rule["annotations"]["description"]
    assert 0 < len(summary) < 120
    assert len(description) > 80
    assert description.rstrip().endswith(".")


def test_recorded_names_say_their_level_and_what_was_done() -> None:
    for rule in rules():
        if "record" in rule:
            assert re.fullmatch(
                r"(job|replica|cause|turn|run|run_turn):kvring_\w+(:rate(5m|1h))?", rule["record"]
            )


async def test_a_page_of_metrics_passes_promtool_without_a_warning() -> None:
    async with live_fleet(2) as fleet:
        for turn in range(3):
            await fleet.chat([{"role": "user", "content": "Tell me about the sea. " * 20}] * (turn + 1))
        await fleet.chat([{"role": "user", "content": "x"}], model="nobody")
        async with fleet.session.get(f"{fleet.routers[0].address}/metrics") as response:
            page = await response.text()
    assert f'kvring_model_requests_total{{model="{MODEL}",outcome="ok"}} 3.0' in page
    done = promtool("check", "metrics", page=page)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


async def test_rules_and_tests_name_only_metrics_that_there_are() -> None:
    async with live_fleet(2) as fleet:
        await fleet.chat([{"role": "user", "content": "Tell me about the sea. " * 20}])
        async with fleet.session.get(f"{fleet.routers[0].address}/metrics") as response:
            page = await response.text()
    told = set(re.findall(r"^# TYPE (\w+)", page, re.MULTILINE)) | OF_OPTIONAL_PARTS
    for text in (rule["expr"] for rule in rules()):
        for name in re.findall(r"(?<![:\w])kvring_\w+", text):
            assert name.removesuffix("_bucket") in told, name


# Told where Redis or KV events are used.
OF_OPTIONAL_PARTS = {
    "kvring_redis_up",
    "kvring_redis_age_seconds",
    "kvring_event_gaps_total",
    "kvring_event_dropped_indexes_total",
    "kvring_event_feed_connected",
}
