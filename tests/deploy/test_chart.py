"""The chart renders to what Kubernetes accepts, and refuses what would not work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from tests.deploy.chart import CHART, EXAMPLES, ROOT, Chart, ChartRefused, container_of, pod_of

_SECRET_SEED = {"chainSeedSecret": {"name": "kvring-seed", "key": "root"}}
_ALL_SET: dict[str, Any] = {
    **_SECRET_SEED,
    "imagePullSecrets": [{"name": "registry"}],
    "serviceAccount": {"annotations": {"a": "b"}},
}
for _program in ("router", "replica"):
    _ALL_SET[_program] = {
        "podAnnotations": {"prometheus.io/scrape": "true"},
        "podLabels": {"team": "chat"},
        "nodeSelector": {"disk": "fast"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "affinity": {"podAntiAffinity": {}},
        "priorityClassName": "high",
        "extraEnv": [{"name": "OMP_NUM_THREADS", "value": "1"}],
        "extraVolumes": [{"name": "models", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "models", "mountPath": "/models"}],
    }
_ALL_SET["replica"]["runtimeClassName"] = "nvidia"
_VALUES = {"defaults": {}, "all set": _ALL_SET, "no account": {"serviceAccount": {"create": False}}}


@pytest.mark.parametrize("example", [None, *EXAMPLES], ids=lambda file: file.stem if file else "defaults")
def test_the_chart_lints(chart: Chart, example: Path | None) -> None:
    assert "0 chart(s) failed" in chart.lint(*([example] if example else []))


@pytest.mark.parametrize("version", ["1.30", "1.37"])
def test_manifests_fit_the_schemas_of_kubernetes(chart: Chart, version: str) -> None:
    renderings = [chart.render(values) for values in _VALUES.values()]
    renderings += [chart.render({}, example) for example in EXAMPLES]
    # Many are alike, and each costs a schema's loading.
    distinct = {str(manifest): manifest for rendered in renderings for manifest in rendered.manifests}
    for manifest in distinct.values():
        kubernetes_validate.validate(manifest, version, strict=True)


def test_values_reach_the_pods(chart: Chart) -> None:
    rendered = chart.render(_ALL_SET)
    for workload in rendered.workloads():
        pod, container = pod_of(workload), container_of(workload)
        assert pod["nodeSelector"] == {"disk": "fast"}
        assert pod["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
        assert pod["affinity"] == {"podAntiAffinity": {}}
        assert pod["priorityClassName"] == "high"
        assert pod["imagePullSecrets"] == [{"name": "registry"}]
        assert {"name": "OMP_NUM_THREADS", "value": "1"} in container["env"]
        assert {"name": "models", "mountPath": "/models"} in container["volumeMounts"]
        assert {"name": "models", "emptyDir": {}} in pod["volumes"]
        assert workload["spec"]["template"]["metadata"]["labels"]["team"] == "chat"
    assert pod_of(rendered.one("StatefulSet"))["runtimeClassName"] == "nvidia"


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"routr": {}}, "'routr' not allowed"),
        ({"router": {"replica": 3}}, "'replica' not allowed"),
        ({"router": {"config": {"limits": {"drain_secs": 3}}}}, "'drain_secs' not allowed"),
        ({"router": {"config": {"fleet": {"dns": {"hostname": "x"}}}}}, "'hostname' not allowed"),
        ({"router": {"config": {"limits": {"attempts": 0}}}}, "minimum: got 0, want 1"),
        ({"router": {"config": {"listen": {"host": "127.0.0.1"}}}}, "/router/config/listen/host"),
        ({"router": {"config": {"listen": {"port": 0}}}}, "/router/config/listen/port"),
        ({"replica": {"config": {"runner": "tensorflow"}}}, "/replica/config/runner"),
        ({"replica": {"config": {"name": "mine"}}}, "'name' not allowed"),
        ({"replica": {"config": {"chain": {"seed": "other"}}}}, "'chain' not allowed"),
        ({"replica": {"enabled": False}}, "nobody would answer"),
    ],
)
def test_what_would_not_work_is_refused(chart: Chart, values: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ChartRefused) as refusal:
        chart.render(values)
    assert complaint in str(refusal.value)


def test_the_schema_knows_the_options_of_today() -> None:
    command = [sys.executable, str(ROOT / "helm" / "write_schema.py"), "--check"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=30, env={"PYTHONPATH": str(ROOT)}, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr


def test_the_chart_and_the_package_have_one_version(chart: Chart) -> None:
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert f'version = "{about["appVersion"]}"' in (ROOT / "pyproject.toml").read_text()
    images = [container_of(workload)["image"] for workload in chart.render().workloads()]
    assert images == [f"kvring-router:{about['appVersion']}", f"kvring-replica:{about['appVersion']}"]


def test_pods_may_do_no_more_than_they_need(chart: Chart) -> None:
    rendered = chart.render()
    assert rendered.one("ServiceAccount")["automountServiceAccountToken"] is False
    for workload in rendered.workloads():
        pod, container = pod_of(workload), container_of(workload)
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"]
        # A Service's variables would be read as options: KVRING_REPLICA_PORT=tcp://...
        assert pod["enableServiceLinks"] is False


def test_selectors_find_the_pods_and_stay(chart: Chart) -> None:
    rendered = chart.render(name="prod")
    for workload in rendered.workloads():
        labels = workload["spec"]["template"]["metadata"]["labels"]
        name = workload["metadata"]["name"]
        selector = workload["spec"]["selector"]["matchLabels"]
        assert set(selector) == {
            "app.kubernetes.io/name",
            "app.kubernetes.io/instance",
            "app.kubernetes.io/component",
        }
        assert selector.items() <= labels.items()
        assert rendered.one("Service", name)["spec"]["selector"] == selector
        assert rendered.one("PodDisruptionBudget", name)["spec"]["selector"]["matchLabels"] == selector
        # A new version of the chart alone must not restart pods, whose caches would be lost.
        assert not {"helm.sh/chart", "app.kubernetes.io/version"} & labels.keys()


def test_services_name_their_ports_and_say_the_protocol(chart: Chart) -> None:
    rendered = chart.render()
    for service in rendered.all("Service"):
        for port in service["spec"]["ports"]:
            assert (port["name"], port["targetPort"], port["protocol"]) == ("http", "http", "TCP")
    for workload in rendered.workloads():
        (port,) = container_of(workload)["ports"]
        assert (port["name"], port["protocol"]) == ("http", "TCP")


def test_replicas_are_found_whether_ready_or_not(chart: Chart) -> None:
    rendered = chart.render()
    replicas = rendered.one("StatefulSet")
    service = rendered.one("Service", replicas["spec"]["serviceName"])["spec"]
    assert service["clusterIP"] == "None"
    assert service["publishNotReadyAddresses"] is True
    assert service["ipFamilyPolicy"] == "SingleStack"


@pytest.mark.parametrize("drain_seconds", [0, 0.5, 120, 3600])
def test_pods_get_longer_than_their_drain(chart: Chart, drain_seconds: float) -> None:
    rendered = chart.render(
        {
            "router": {"config": {"limits": {"drain_seconds": drain_seconds}}, "preStopSleepSeconds": 7},
            "replica": {"config": {"drain_seconds": drain_seconds}},
        }
    )
    router = pod_of(rendered.one("Deployment"))
    assert router["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"] == 7
    assert router["terminationGracePeriodSeconds"] >= 7 + drain_seconds + 5
    assert pod_of(rendered.one("StatefulSet"))["terminationGracePeriodSeconds"] >= drain_seconds + 11


def test_pods_restart_when_their_own_options_change(chart: Chart) -> None:
    def checksums(values: dict[str, Any]) -> list[str]:
        return [
            workload["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
            for workload in chart.render(values).workloads()
        ]

    router, replica = checksums({})
    assert checksums({"router": {"config": {"policy": {"name": "round_robin"}}}}) != [router, replica]
    assert checksums({"router": {"config": {"policy": {"name": "round_robin"}}}})[1] == replica
    assert checksums({"replica": {"config": {"digest_seconds": 2}}}) != [router, replica]
    assert checksums({"replica": {"config": {"digest_seconds": 2}}})[0] == router


def test_long_release_names_fit(chart: Chart) -> None:
    rendered = chart.render(name="a-very-long-release-name-that-goes-on-to-53-letters-x")
    for manifest in rendered.manifests:
        # A StatefulSet's pods carry its name and a hash of 10 letters in a label of 63.
        assert len(manifest["metadata"]["name"]) <= 52
