"""Pods of a fleet of one's own, as documented: Kubernetes accepts them, routers find them, sidecars start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from loadgen.commands.sidecar import command as sidecar_command
from router.config import RouterConfig
from tests.deploy.chart import CHART, Chart, container_of, mounted

_PODS = CHART / "examples" / "pods" / "vllm.yaml"
_VALUES = CHART / "examples" / "vllm.yaml"


def _documents() -> dict[str, Any]:
    return {one["kind"]: one for one in yaml.safe_load_all(_PODS.read_text())}


@pytest.mark.parametrize("version", ["1.30", "1.37"])
def test_kubernetes_accepts_them(version: str) -> None:
    for document in _documents().values():
        kubernetes_validate.validate(document, version, strict=True)


def test_routers_find_them_and_their_sidecars(chart: Chart, tmp_path: Path) -> None:
    rendered = chart.render({}, _VALUES)
    config = RouterConfig.load(mounted(rendered, rendered.router, tmp_path))
    documents = _documents()
    service, pods = documents["Service"], documents["StatefulSet"]["spec"]["template"]
    assert config.fleet.kubernetes.service == service["metadata"]["name"]
    assert config.fleet.kubernetes.port in [port["name"] for port in service["spec"]["ports"]]
    assert not config.fleet.kubernetes.namespace
    assert service["spec"]["selector"].items() <= pods["metadata"]["labels"].items()
    engine, sidecar = pods["spec"]["containers"]
    assert [port["containerPort"] for port in sidecar["ports"]] == [config.fleet.events.sidecar_port]
    assert f"--model={next(iter(config.models))}" in engine["args"]
    # The tokenizer lies where routers have it.
    routers = container_of(rendered.router)["volumeMounts"]
    assert next(one for one in sidecar["volumeMounts"] if one["name"] == "tokenizers") in routers
    (volume,) = [one for one in pods["spec"]["volumes"] if one["name"] == "kvring"]
    assert rendered.one("ConfigMap", volume["configMap"]["name"])["data"].keys() == {"router.toml"}


def test_the_sidecar_s_flags_are_its_own(tmp_path: Path) -> None:
    _, sidecar = _documents()["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    config = tmp_path / "router.toml"
    config.write_text("")
    arguments = [one.replace("/etc/kvring/router.toml", str(config)) for one in sidecar["args"]]
    assert sidecar["command"] == ["kvring", "sidecar"]
    context = sidecar_command.make_context("sidecar", arguments)
    assert isinstance(context, click.Context)
    assert context.params["host"] == "0.0.0.0"
    engine_args = " ".join(_documents()["StatefulSet"]["spec"]["template"]["spec"]["containers"][0]["args"])
    for flag in ("events", "replay"):
        port = context.params[flag].rsplit(":", 1)[1]
        assert f'endpoint": "tcp://*:{port}"' in engine_args
