"""Pods of a fleet of one's own, as documented: Kubernetes accepts them, routers find them, sidecars start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from loadgen.commands.sidecar import command as sidecar_command
from router.config import RouterConfig
from tests.deploy.chart import CHART, Chart, Manifest, component_of, container_of, mounted, pod_of
from tests.deploy.values import PICKER

_PODS = CHART / "examples" / "pods" / "vllm.yaml"
_MONITOR = CHART / "examples" / "pods" / "vllm-monitor.yaml"
_VALUES = CHART / "examples" / "vllm.yaml"


def _documents() -> dict[str, Any]:
    return {one["kind"]: one for one in yaml.safe_load_all(_PODS.read_text())}


def _pods() -> Manifest:
    pods: Manifest = _documents()["StatefulSet"]["spec"]["template"]
    return pods


def _containers() -> tuple[Manifest, Manifest]:
    engine, sidecar = _pods()["spec"]["containers"]
    return engine, sidecar


def _flag(container: Manifest, name: str) -> str:
    (found,) = [one.split("=", 1)[1] for one in container["args"] if one.startswith(f"--{name}=")]
    return str(found)


@pytest.mark.parametrize("version", ["1.30", "1.37"])
def test_kubernetes_accepts_them(version: str) -> None:
    for document in _documents().values():
        kubernetes_validate.validate(document, version, strict=True)


def test_routers_find_them_and_their_sidecars(chart: Chart, tmp_path: Path) -> None:
    rendered = chart.render({}, _VALUES)
    config = RouterConfig.load(mounted(rendered, rendered.router, tmp_path))
    service, pods = _documents()["Service"], _pods()
    assert config.fleet.kubernetes.service == service["metadata"]["name"]
    assert config.fleet.kubernetes.port in [port["name"] for port in service["spec"]["ports"]]
    assert not config.fleet.kubernetes.namespace
    assert service["spec"]["selector"].items() <= pods["metadata"]["labels"].items()
    engine, sidecar = _containers()
    assert [port["containerPort"] for port in sidecar["ports"]] == [config.fleet.events.sidecar_port]
    assert f"--model={next(iter(config.models))}" in engine["args"]
    # The tokenizer lies where routers have it.
    routers = container_of(rendered.router)["volumeMounts"]
    assert next(one for one in sidecar["volumeMounts"] if one["name"] == "tokenizers") in routers
    (volume,) = [one for one in pods["spec"]["volumes"] if one["name"] == "kvring"]
    assert rendered.one("ConfigMap", volume["configMap"]["name"])["data"].keys() == {"router.toml"}


def test_the_sidecar_is_the_image_and_has_the_flags_of_today(chart: Chart, tmp_path: Path) -> None:
    _, sidecar = _containers()
    assert sidecar["image"] == container_of(chart.render({}, _VALUES).router)["image"]
    config = tmp_path / "router.toml"
    config.write_text("")
    arguments = [one.replace("/etc/kvring/router.toml", str(config)) for one in sidecar["args"]]
    assert sidecar["command"] == ["kvring", "sidecar"]
    context = sidecar_command.make_context("sidecar", arguments)
    assert isinstance(context, click.Context)
    assert context.params["host"] == "0.0.0.0"


def test_events_are_heard_in_the_pod_alone() -> None:
    engine, sidecar = _containers()
    events = json.loads(_flag(engine, "kv-events-config"))
    for endpoint in (events["endpoint"], events["replay_endpoint"]):
        assert urlsplit(endpoint).hostname == "127.0.0.1"
    # vLLM connects to what has no wildcard, and always binds where it replays.
    assert _flag(sidecar, "events") == f"@{events['endpoint']}"
    assert _flag(sidecar, "replay") == events["replay_endpoint"]
    told = {port["containerPort"] for one in (engine, sidecar) for port in one["ports"]}
    assert not told & {urlsplit(events[name]).port for name in ("endpoint", "replay_endpoint")}


def test_routers_and_prometheus_alone_reach_them(chart: Chart) -> None:
    policy = _documents()["NetworkPolicy"]["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= _pods()["metadata"]["labels"].items()
    (rule,) = policy["ingress"]
    named = {port["name"] for one in _containers() for port in one["ports"]}
    assert {port["port"] for port in rule["ports"]} == named == {"http", "digest"}
    peers, prometheus = rule["from"]
    rendered = chart.render(PICKER, _VALUES)
    for workload in rendered.workloads():
        labels = workload["spec"]["template"]["metadata"]["labels"]
        assert peers["podSelector"]["matchLabels"].items() <= labels.items()
        (components,) = peers["podSelector"]["matchExpressions"]
        assert component_of(workload) in components["values"]
    chart_s = rendered.one("NetworkPolicy", "kvring-router")["spec"]["ingress"][1]["from"]
    assert prometheus in chart_s


def test_they_drain(chart: Chart) -> None:
    engine, _ = _containers()
    sleep = engine["lifecycle"]["preStop"]["sleep"]["seconds"]
    drain = int(_flag(engine, "shutdown-timeout"))
    # Slices tell within a second or two that a pod goes.
    assert sleep >= 5
    # As long as a router, whose answers these are.
    rendered = chart.render({}, _VALUES)
    assert drain >= 120
    assert _pods()["spec"]["terminationGracePeriodSeconds"] > sleep + drain
    assert (
        _pods()["spec"]["terminationGracePeriodSeconds"]
        >= (pod_of(rendered.router)["terminationGracePeriodSeconds"])
    )
    budget = _documents()["PodDisruptionBudget"]["spec"]
    assert budget["maxUnavailable"] == 1
    assert budget["selector"] == _documents()["StatefulSet"]["spec"]["selector"]


def test_sidecars_name_blocks_by_the_routers_seed(chart: Chart) -> None:
    _, sidecar = _containers()
    (own,) = sidecar["env"]
    # A release without the Secret has the seed in its options.
    assert own["valueFrom"]["secretKeyRef"].pop("optional") is True
    rendered = chart.render({"chainSeedSecret": {"name": "kvring-seed"}}, _VALUES)
    assert own in container_of(rendered.router)["env"]


def test_the_sidecars_are_scraped() -> None:
    monitor = yaml.safe_load(_MONITOR.read_text())["spec"]
    assert monitor["selector"]["matchLabels"].items() <= _pods()["metadata"]["labels"].items()
    scraped = {one["port"] for one in monitor["podMetricsEndpoints"]}
    assert scraped == {port["name"] for one in _containers() for port in one["ports"]}
