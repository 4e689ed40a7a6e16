"""Pods: what they may do, how they are asked, how they go, how many there are."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from tests.deploy.chart import EXAMPLES, Chart, Manifest, component_of, container_of, pod_of
from tests.deploy.values import ALL_SET, PICKER

_PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


def test_values_reach_the_pods(chart: Chart) -> None:
    rendered = chart.render(ALL_SET)
    assert len(rendered.workloads()) == 3
    for workload in rendered.workloads():
        pod, container = pod_of(workload), container_of(workload)
        assert pod["nodeSelector"] == {"disk": "fast"}
        assert {"key": "spot", "operator": "Exists"} in pod["tolerations"]
        assert pod["affinity"] == {"podAntiAffinity": {}}
        assert pod["priorityClassName"] == "high"
        assert pod["runtimeClassName"] == "nvidia"
        assert pod["imagePullSecrets"] == [{"name": "registry"}]
        assert pod["topologySpreadConstraints"][0]["topologyKey"] == "topology.kubernetes.io/zone"
        assert {"name": "OMP_NUM_THREADS", "value": "1"} in container["env"]
        assert {"name": "models", "mountPath": "/models"} in container["volumeMounts"]
        assert {"name": "models", "emptyDir": {}} in pod["volumes"]
        assert workload["spec"]["template"]["metadata"]["labels"]["team"] == "chat"


def test_pods_may_do_no_more_than_they_need(chart: Chart) -> None:
    rendered = chart.render(ALL_SET)
    pods = [pod_of(workload) for workload in rendered.workloads()] + [rendered.one("Pod")["spec"]]
    for pod in pods:
        (container,) = pod["containers"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        # A Service's variables would be read as options: KVRING_REPLICA_PORT=tcp://...
        assert pod["enableServiceLinks"] is False
    for workload in rendered.workloads():
        assert {"name": "tmp", "mountPath": "/tmp"} in container_of(workload)["volumeMounts"]


def test_tokens_are_mounted_where_slices_are_watched_and_nowhere_else(chart: Chart) -> None:
    rendered = chart.render(ALL_SET)
    for account in rendered.all("ServiceAccount"):
        assert account["automountServiceAccountToken"] is False
    tokens = {
        component_of(workload): pod_of(workload)["automountServiceAccountToken"]
        for workload in rendered.workloads()
    }
    assert tokens == {"router": True, "picker": True, "replica": False}
    assert rendered.one("Pod")["spec"]["automountServiceAccountToken"] is False
    by_dns = chart.render({"router": {"discovery": "dns"}})
    assert not any(pod_of(workload)["automountServiceAccountToken"] for workload in by_dns.workloads())


def test_replicas_and_routers_have_accounts_of_their_own(chart: Chart) -> None:
    rendered = chart.render(ALL_SET)
    accounts = [account["metadata"]["name"] for account in rendered.all("ServiceAccount")]
    router, picker, replica = (
        pod_of(rendered.part(component))["serviceAccountName"]
        for component in ("router", "picker", "replica")
    )
    assert router == picker
    assert sorted(accounts) == sorted([router, replica])


def test_probes_ask_what_depends_on_nothing_but_readiness(chart: Chart) -> None:
    rendered = chart.render(PICKER)
    for component, alive, ready in (
        ("router", "/healthz", "/readyz"),
        ("picker", "/healthz", "/readyz"),
        ("replica", "/health", "/health"),
    ):
        container = container_of(rendered.part(component))
        assert [container[probe]["httpGet"]["path"] for probe in _PROBES] == [alive, alive, ready]
        named = {port["name"] for port in container["ports"]}
        assert {container[probe]["httpGet"]["port"] for probe in _PROBES} <= named
    router = container_of(rendered.router)
    assert {router[probe]["httpGet"]["port"] for probe in _PROBES} == {"control"}
    together = container_of(chart.render({"router": {"config": {"control": {"port": None}}}}).router)
    assert {together[probe]["httpGet"]["port"] for probe in _PROBES} == {"http"}
    assert [port["name"] for port in together["ports"]] == ["http"]


def test_slow_models_are_given_their_time(chart: Chart) -> None:
    probe = container_of(chart.render({"replica": {"loadSeconds": 1801}}).replica)["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 1801


@pytest.mark.parametrize("drain_seconds", [0, 0.5, 120, 3600])
def test_pods_get_longer_than_their_drain(chart: Chart, drain_seconds: float) -> None:
    rendered = chart.render(
        {
            "router": {"config": {"limits": {"drain_seconds": drain_seconds}}, "preStopSleepSeconds": 7},
            "replica": {"config": {"drain_seconds": drain_seconds}},
            **PICKER,
            "picker": {"enabled": True, "preStopSleepSeconds": 7},
        }
    )
    for component in ("router", "picker"):
        pod = pod_of(rendered.part(component))
        assert pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"] == 7
        assert pod["terminationGracePeriodSeconds"] >= 7 + drain_seconds + 5
    assert pod_of(rendered.replica)["terminationGracePeriodSeconds"] >= drain_seconds + 11


def _checksums(chart: Chart, values: dict[str, Any]) -> list[str | None]:
    rendered = chart.render(values)
    metadata = [one["spec"]["template"]["metadata"] for one in (rendered.router, rendered.replica)]
    return [one.get("annotations", {}).get("checksum/config") for one in metadata]


def test_pods_restart_when_their_own_options_change(chart: Chart) -> None:
    router, replica = _checksums(chart, {})
    changed = _checksums(chart, {"router": {"config": {"policy": {"name": "round_robin"}}}})
    assert changed[0] != router
    assert changed[1] == replica
    changed = _checksums(chart, {"replica": {"config": {"digest_seconds": 2}}})
    assert changed[0] == router
    assert changed[1] != replica


def test_pods_may_be_left_to_take_changes_up_by_themselves(chart: Chart) -> None:
    off = {"restartOnConfigChange": False}
    assert _checksums(chart, {"router": off, "replica": off}) == [None, None]
    # A single file out of a ConfigMap would never change in a running pod.
    for mount in container_of(chart.render({"router": off}).router)["volumeMounts"]:
        assert "subPath" not in mount


def test_what_is_scaled_says_no_number(chart: Chart) -> None:
    fixed, scaled = chart.render(), chart.render(ALL_SET)
    for component in ("router", "replica"):
        assert "replicas" in fixed.part(component)["spec"]
        assert "replicas" not in scaled.part(component)["spec"]
    measured = {"kind": "hpa", "metrics": [{"type": "Resource"}]}
    other = chart.render({"replica": {"autoscaling": measured}})
    for scaler, workload in (
        (scaled.one("HorizontalPodAutoscaler"), scaled.router),
        (scaled.one("ScaledObject"), scaled.replica),
        (other.one("HorizontalPodAutoscaler"), other.replica),
    ):
        assert scaler["spec"]["scaleTargetRef"] == {
            "apiVersion": "apps/v1",
            "kind": workload["kind"],
            "name": workload["metadata"]["name"],
        }


def test_gpus_are_asked_for_and_tolerated(chart: Chart) -> None:
    (gpu,) = [example for example in EXAMPLES if example.stem == "gpu"]
    pod = pod_of(chart.render({}, gpu).replica)
    assert pod["containers"][0]["resources"]["limits"] == {"memory": "16Gi", "nvidia.com/gpu": 1}
    assert pod["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    assert pod["runtimeClassName"] == "nvidia"
    assert "nodeSelector" in pod
    plain = pod_of(chart.render().replica)
    assert list(plain["containers"][0]["resources"]["limits"]) == ["memory"]
    assert "tolerations" not in plain


def test_replicas_of_a_deployment_are_replaced_in_place(chart: Chart) -> None:
    replicas = chart.render({"replica": {"kind": "Deployment"}}).replica
    assert replicas["kind"] == "Deployment"
    assert replicas["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 1, "maxSurge": 0}
    assert not {"serviceName", "podManagementPolicy"} & replicas["spec"].keys()
    assert chart.render().replica["kind"] == "StatefulSet"


@pytest.mark.parametrize(("kind", "name"), list(product(("StatefulSet", "Deployment"), ("kvring", "prod"))))
def test_selectors_find_the_pods_and_stay(chart: Chart, kind: str, name: str) -> None:
    rendered = chart.render({**PICKER, "replica": {"kind": kind}}, name=name)
    for workload in rendered.workloads():
        labels = workload["spec"]["template"]["metadata"]["labels"]
        own = workload["metadata"]["name"]
        selector = workload["spec"]["selector"]["matchLabels"]
        assert set(selector) == {
            "app.kubernetes.io/name",
            "app.kubernetes.io/instance",
            "app.kubernetes.io/component",
        }
        assert selector.items() <= labels.items()
        assert rendered.one("Service", own)["spec"]["selector"] == selector
        assert rendered.one("PodDisruptionBudget", own)["spec"]["selector"]["matchLabels"] == selector
        assert pod_of(workload)["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"] == selector
        # A new version of the chart alone must not restart pods, whose caches would be lost.
        assert not {"helm.sh/chart", "app.kubernetes.io/version"} & labels.keys()


def test_all_objects_carry_the_recommended_labels(chart: Chart) -> None:
    for manifest in chart.render(ALL_SET).manifests:
        assert manifest["metadata"]["labels"].keys() >= {
            f"app.kubernetes.io/{label}"
            for label in ("name", "instance", "component", "part-of", "managed-by", "version")
        }
        assert manifest["metadata"]["namespace"] == "ai"


def test_ports_are_named_and_say_the_protocol(chart: Chart) -> None:
    rendered = chart.render(ALL_SET)
    containers = {component_of(one): _ports(container_of(one)["ports"]) for one in rendered.workloads()}
    assert containers["router"] == {"http": 8080, "control": 8081}
    assert containers["picker"] == {"ext-proc": 9002, "health": 9003, "control": 9090}
    assert containers["replica"]["http"] == 8000
    for service in rendered.all("Service"):
        # Without it helm's server-side apply fails.
        ports = _ports(service["spec"]["ports"])
        assert ports
        selected = service["spec"]["selector"]["app.kubernetes.io/component"]
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= containers[selected].keys()
    assert _ports(rendered.one("Service", "kvring-router")["spec"]["ports"]) == {"http": 80}


def _ports(ports: list[Manifest]) -> dict[str, int]:
    assert all(port["protocol"] == "TCP" for port in ports)
    return {port["name"]: port.get("port") or port["containerPort"] for port in ports}
