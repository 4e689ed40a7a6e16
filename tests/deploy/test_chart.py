"""The chart lints, renders to what Kubernetes accepts, and refuses what would not work."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from tests.deploy.chart import (
    CHART,
    EXAMPLES,
    ROOT,
    Chart,
    ChartRefused,
    Manifest,
    component_of,
    container_of,
)
from tests.deploy.values import ALL_SET, PICKER, RENDERED

# Known to CRDs alone, which test_crds.py looks at.
_OF_CRDS = (
    "keda.sh/",
    "monitoring.coreos.com/",
    "gateway.networking.k8s.io/",
    "inference.networking.k8s.io/",
)
_SNAPSHOTS = Path(__file__).parent / "snapshots"
# How to renew them: KVRING_SNAPSHOTS=write pytest tests/deploy/test_chart.py -k snapshot
_WRITE = os.environ.get("KVRING_SNAPSHOTS") == "write"


@pytest.mark.parametrize("example", [None, *EXAMPLES], ids=lambda file: file.stem if file else "defaults")
def test_the_chart_lints(chart: Chart, example: Path | None) -> None:
    assert "0 chart(s) failed" in chart.lint(*([example] if example else []))


@pytest.mark.parametrize("version", ["1.30", "1.37"])
def test_manifests_fit_the_schemas_of_kubernetes(chart: Chart, version: str) -> None:
    renderings = [chart.render(values) for values in RENDERED.values()]
    renderings += [chart.render({}, example) for example in EXAMPLES]
    # Many are alike, and each costs a schema's loading.
    distinct = {str(manifest): manifest for rendered in renderings for manifest in rendered.manifests}
    kinds = set()
    for manifest in distinct.values():
        if not manifest["apiVersion"].startswith(_OF_CRDS):
            kubernetes_validate.validate(manifest, version, strict=True)
            kinds.add(manifest["kind"])
    assert kinds >= {
        "Deployment",
        "StatefulSet",
        "NetworkPolicy",
        "HorizontalPodAutoscaler",
        "Ingress",
        "Role",
    }


@pytest.mark.parametrize("example", [None, *EXAMPLES], ids=lambda file: file.stem if file else "defaults")
def test_documented_values_render_to_their_snapshots(chart: Chart, example: Path | None) -> None:
    rendered = chart.render({}, *([example] if example else []))
    text = yaml.safe_dump_all([_brief(one) for one in rendered.manifests], width=110)
    snapshot = _SNAPSHOTS / f"{example.stem if example else 'defaults'}.yaml"
    if _WRITE:
        snapshot.write_text(text)
    assert snapshot.read_text() == text, (
        f"renew with KVRING_SNAPSHOTS=write, and read the difference in {snapshot}"
    )


def _brief(manifest: Manifest) -> Manifest:
    """Leave out what is copied from elsewhere, and tested there."""
    if manifest["kind"] == "PrometheusRule":
        return {**manifest, "spec": "files/kvring.rules.yaml"}
    if "kvring.json" in manifest.get("data", {}):
        return {**manifest, "data": "files/kvring.json"}
    return manifest


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"routr": {}}, "'routr' not allowed"),
        ({"router": {"replica": 3}}, "'replica' not allowed"),
        ({"picker": {"inferencePool": {"enable": True}}}, "'enable' not allowed"),
        ({"monitoring": {"kind": "Monitor"}}, "/monitoring/kind"),
        ({"networkPolicy": {"egress": {"redisport": 1}}}, "'redisport' not allowed"),
        ({"replica": {"kind": "DaemonSet"}}, "/replica/kind"),
        ({"router": {"config": {"limits": {"drain_secs": 3}}}}, "'drain_secs' not allowed"),
        ({"router": {"config": {"fleet": {"dns": {"hostname": "x"}}}}}, "'hostname' not allowed"),
        ({"router": {"config": {"limits": {"attempts": 0}}}}, "minimum: got 0, want 1"),
        ({"router": {"config": {"listen": {"host": "127.0.0.1"}}}}, "/router/config/listen/host"),
        ({"router": {"config": {"listen": {"port": 0}}}}, "/router/config/listen/port"),
        ({"router": {"config": {"control": {"host": "localhost"}}}}, "/router/config/control/host"),
        ({"router": {"config": {"control": {"host": None}}}}, "/router/config/control"),
        ({"router": {"config": {"redis": {"url": "redis://:secret@redis"}}}}, "/router/config/redis/url"),
        ({"router": {"config": {"chain": {"seed": "secret"}}}}, "/router/config/chain/seed"),
        ({"router": {"config": {"picker": {"host": "127.0.0.1"}}}}, "/router/config/picker/host"),
        ({"router": {"config": {"control": {"port": 8080}}}}, "are both port 8080"),
        ({**PICKER, "router": {"config": {"picker": {"port": 9003}}}}, "are both port 9003"),
        ({**PICKER, "router": {"config": {"picker": {"health_port": 9090}}}}, "are both port 9090"),
        ({"replica": {"config": {"port": 5557, "events": {"enabled": True}}}}, "are both port 5557"),
        ({"picker": {"enabled": True}}, "which pods ask pickers?"),
        ({"replica": {"config": {"runner": "tensorflow"}}}, "/replica/config/runner"),
        ({"replica": {"config": {"name": "mine"}}}, "'name' not allowed"),
        ({"replica": {"config": {"chain": {"seed": "other"}}}}, "'chain' not allowed"),
        ({"replica": {"enabled": False}}, "nobody would answer"),
        ({"router": {"discovery": "none"}}, "no other way to the replicas"),
        ({"replica": {"autoscaling": {"kind": "keda"}}}, "KEDA needs triggers, or prometheusUrl"),
        ({"replica": {"autoscaling": {"kind": "hpa"}}}, "an HPA needs metrics"),
        ({"router": {"autoscaling": {"kind": "hpa", "minReplicas": 9}}}, "more than maxReplicas"),
        ({"httpRoute": {"enabled": True}}, "which Gateway?"),
        (
            {"httpRoute": {"enabled": True, "parentRefs": [{"name": "g"}], "backend": "inferencePool"}},
            "needs picker.enabled",
        ),
        ({"ingress": {"enabled": True}}, "under which names?"),
    ],
)
def test_what_would_not_work_is_refused(chart: Chart, values: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ChartRefused) as refusal:
        chart.render(values)
    assert complaint in str(refusal.value)


def test_a_fleet_of_ones_own_must_be_reachable(chart: Chart) -> None:
    (vllm,) = [example for example in EXAMPLES if example.stem == "vllm"]
    with pytest.raises(ChartRefused) as refusal:
        chart.render({"networkPolicy": {"egress": {"enabled": True}}}, vllm)
    assert "must let routers out" in str(refusal.value)
    with pytest.raises(ChartRefused) as refusal:
        chart.render({**PICKER, "picker": {"enabled": True, "inferencePool": {"enabled": True}}}, vllm)
    assert "a pool of your own" in str(refusal.value)


def test_examples_go_together_as_the_readme_says(chart: Chart) -> None:
    gateway, gpu, production, vllm = EXAMPLES
    assert [file.stem for file in EXAMPLES] == ["gateway", "gpu", "production", "vllm"]
    for other in (gateway, production):
        assert component_of(chart.render({}, gpu, other).replica) == "replica"
    servers: list[Any] = [{"to": [{"podSelector": {}}]}]
    rendered = chart.render({"networkPolicy": {"egress": {"extra": servers}}}, production, vllm)
    assert not rendered.all("ScaledObject")
    mine = {"picker": {"inferencePool": {"enabled": False}}, "httpRoute": {"enabled": False}}
    assert len(chart.render(mine, vllm, gateway).workloads()) == 2
    assert chart.render({}, production, gateway).all("HorizontalPodAutoscaler")
    without = {"router": {"autoscaling": {"kind": ""}}, "ingress": {"enabled": False}}
    rendered = chart.render(without, production, gateway)
    assert rendered.router["spec"]["replicas"] == 0
    assert not rendered.all("HorizontalPodAutoscaler") + rendered.all("Ingress")


@pytest.mark.parametrize("script", ["write_schema.py", "write_files.py"])
def test_what_is_generated_is_of_today(script: str) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "helm" / script), "--check"],
        capture_output=True,
        text=True,
        timeout=30,
        env={"PYTHONPATH": str(ROOT)},
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr


def test_the_chart_and_the_package_have_one_version(chart: Chart) -> None:
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert f'version = "{about["appVersion"]}"' in (ROOT / "pyproject.toml").read_text()
    # Images of another version would run other code than these options are for.
    files = [*ROOT.glob("deploy/*"), *CHART.rglob("*.yaml"), ROOT / "README.md"]
    named = {
        found
        for file in files
        if file.is_file()
        for found in re.findall(r"(?:kvring-(?:router|replica):|VERSION=|tag: )(\d[\w.]*)", file.read_text())
    }
    assert named == {about["version"]} == {about["appVersion"]}
    rendered = chart.render()
    images = [container_of(workload)["image"] for workload in (rendered.router, rendered.replica)]
    assert images == [f"kvring-router:{about['appVersion']}", f"kvring-replica:{about['appVersion']}"]


def test_notes_speak_of_what_runs(chart: Chart) -> None:
    (gateway,) = [example for example in EXAMPLES if example.stem == "gateway"]
    routers = chart.notes()
    assert "port-forward service/kvring-router 8080:80" in routers
    assert "helm test kvring" in routers
    pickers = chart.notes({}, gateway)
    assert "router" not in pickers.replace("No routers run", "")
    assert "helm test" not in pickers
    assert "port-forward service/kvring-picker 9090:9090" in pickers
    assert "statefulset/kvring-replica" in pickers
    assert "nobody leads clients" in chart.notes({"router": {"replicas": 0}})


def test_long_release_names_fit(chart: Chart) -> None:
    rendered = chart.render(ALL_SET, name="a-very-long-release-name-that-goes-on-to-53-letters-x")
    for manifest in rendered.manifests:
        # A StatefulSet's pods carry its name and a hash of 10 letters in a label of 63.
        assert len(manifest["metadata"]["name"]) <= 52


def test_custom_resources_are_rendered_only_where_turned_on(chart: Chart) -> None:
    for manifest in chart.render().manifests:
        assert not manifest["apiVersion"].startswith(_OF_CRDS)
        assert manifest["kind"] not in ("Ingress", "HorizontalPodAutoscaler")


def test_configmaps_hold_no_secrets(chart: Chart) -> None:
    rendered = chart.render(ALL_SET)
    for one in rendered.all("ConfigMap"):
        text = str(one["data"])
        assert "redis://" not in text
        assert "seed" not in text
    assert not rendered.all("Secret")
    for workload in rendered.workloads():
        secrets = {
            variable["name"]: variable["valueFrom"]["secretKeyRef"]
            for variable in container_of(workload)["env"]
            if "secretKeyRef" in variable.get("valueFrom", {})
        }
        assert {"name": "kvring-seed", "key": "root"} in secrets.values()
        if component_of(workload) != "replica":
            assert {"name": "kvring-redis", "key": "url"} in secrets.values()
