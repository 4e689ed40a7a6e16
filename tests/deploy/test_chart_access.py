"""Who finds and watches whom: discovery, access to the Kubernetes API, ways in, Prometheus."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from router.config import RouterConfig
from tests.deploy.chart import (
    CHART,
    EXAMPLES,
    Chart,
    component_of,
    container_of,
    mounted,
    pod_of,
)
from tests.deploy.values import ALL_SET, PICKER


def test_routers_may_read_endpointslices_and_nothing_else(chart: Chart) -> None:
    rendered = chart.render(ALL_SET)
    role, binding = rendered.one("Role"), rendered.one("RoleBinding")
    assert role["rules"] == [
        {
            "apiGroups": ["discovery.k8s.io"],
            "resources": ["endpointslices"],
            "verbs": ["get", "list", "watch"],
        }
    ]
    assert binding["roleRef"] == {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "Role",
        "name": role["metadata"]["name"],
    }
    assert binding["subjects"] == [
        {
            "kind": "ServiceAccount",
            "name": pod_of(rendered.router)["serviceAccountName"],
            "namespace": "ai",
        }
    ]
    assert not rendered.all("ClusterRole") + rendered.all("ClusterRoleBinding")


@pytest.mark.parametrize(
    "values",
    [
        {"router": {"discovery": "dns"}},
        {"router": {"discovery": "none", "config": {"fleet": {"leases": {"enabled": True}}}}},
        {
            "replica": {"enabled": False},
            "router": {"config": {"fleet": {"replicas": [{"name": "a", "url": "http://a:8000"}]}}},
        },
    ],
)
def test_without_slices_nobody_has_access_to_the_api(chart: Chart, values: dict[str, Any]) -> None:
    rendered = chart.render(values)
    assert not rendered.all("Role") + rendered.all("RoleBinding")
    assert not any(pod_of(workload)["automountServiceAccountToken"] for workload in rendered.workloads())


def test_access_is_given_where_the_service_is(chart: Chart) -> None:
    (vllm,) = [example for example in EXAMPLES if example.stem == "vllm"]
    elsewhere = {"router": {"config": {"fleet": {"kubernetes": {"namespace": "inference"}}}}}
    rendered = chart.render(elsewhere, vllm)
    for kind in ("Role", "RoleBinding"):
        # A release of the same name in another namespace has its own there.
        assert (
            rendered.one(kind)["metadata"].items()
            >= {"namespace": "inference", "name": "kvring-router-ai"}.items()
        )
    assert rendered.one("RoleBinding")["subjects"][0]["namespace"] == "ai"
    assert rendered.one("RoleBinding")["roleRef"]["name"] == "kvring-router-ai"
    own = chart.render({}, vllm).one("Role")["metadata"]
    assert (own["namespace"], own["name"]) == ("ai", "kvring-router")


def test_replicas_are_found_whether_ready_or_not(chart: Chart) -> None:
    rendered = chart.render()
    service = rendered.one("Service", rendered.replica["spec"]["serviceName"])["spec"]
    assert service["clusterIP"] == "None"
    assert service["publishNotReadyAddresses"] is True
    assert service["ipFamilyPolicy"] == "SingleStack"


def test_pickers_with_a_certificate_do_not_claim_to_speak_without(chart: Chart, tmp_path: Path) -> None:
    (gateway,) = [example for example in EXAMPLES if example.stem == "gateway"]
    tls = CHART / "examples" / "over" / "picker-tls.yaml"
    for files, expected in (((gateway,), "kubernetes.io/h2c"), ((gateway, tls), None)):
        rendered = chart.render({}, *files)
        ports = {port["name"]: port for port in rendered.one("Service", "kvring-picker")["spec"]["ports"]}
        assert ports["ext-proc"].get("appProtocol") == expected
        # Health is told without TLS either way.
        assert ports["health"]["appProtocol"] == "kubernetes.io/h2c"
    picker = rendered.part("picker")
    options = RouterConfig.load(mounted(rendered, picker, tmp_path)).picker
    (mount,) = [one for one in container_of(picker)["volumeMounts"] if one["name"] == "tls"]
    for file, name in ((options.certificate_file, "tls.crt"), (options.key_file, "tls.key")):
        # As Secrets of the type kubernetes.io/tls name them.
        assert str(file) == f"{mount['mountPath']}/{name}"
    (volume,) = [one for one in pod_of(picker)["volumes"] if one["name"] == "tls"]
    assert volume["secret"]["secretName"] == "kvring-picker-tls"


@pytest.mark.parametrize("kind", ["PodMonitor", "ServiceMonitor"])
@pytest.mark.parametrize("control", [8081, None])
def test_monitors_select_what_serves_metrics(chart: Chart, kind: str, control: int | None) -> None:
    values = {
        "monitoring": {"kind": kind, "labels": {"release": "p"}, "intervalSeconds": 30},
        **PICKER,
        "router": {"config": {"control": {"port": control}}},
    }
    rendered = chart.render(values)
    monitors = rendered.all(kind)
    assert len(monitors) == 3
    for monitor in monitors:
        spec = monitor["spec"]
        (endpoint,) = spec["podMetricsEndpoints" if kind == "PodMonitor" else "endpoints"]
        assert (endpoint["path"], endpoint["interval"]) == ("/metrics", "30s")
        assert monitor["metadata"]["labels"]["release"] == "p"
        wanted = spec["selector"]["matchLabels"].items()
        if kind == "PodMonitor":
            pods = [one["spec"]["template"] for one in rendered.workloads()]
            (found,) = [one for one in pods if wanted <= one["metadata"]["labels"].items()]
            ports = found["spec"]["containers"][0]["ports"]
        else:
            (found,) = [one for one in rendered.all("Service") if wanted <= one["metadata"]["labels"].items()]
            ports = found["spec"]["ports"]
        assert endpoint["port"] in [port["name"] for port in ports]


def test_alerts_and_dashboard_are_those_of_deploy(chart: Chart) -> None:
    rendered = chart.render(ALL_SET)
    rule = rendered.one("PrometheusRule")
    assert rule["spec"] == yaml.safe_load((CHART / "files" / "kvring.rules.yaml").read_text())
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    (dashboard,) = [one for one in rendered.all("ConfigMap") if component_of(one) == "dashboard"]
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    text = dashboard["data"]["kvring.json"]
    assert json.loads(text) == json.loads((CHART / "files" / "kvring.json").read_text())
    # A ConfigMap holds a mebibyte.
    assert len(text.encode()) < 1_000_000


def test_an_ingress_streams_and_opens_the_api_alone(chart: Chart) -> None:
    rendered = chart.render(ALL_SET)
    ingress = rendered.one("Ingress")
    assert ingress["metadata"]["annotations"]["nginx.ingress.kubernetes.io/proxy-buffering"] == "off"
    assert ingress["spec"]["ingressClassName"] == "nginx"
    assert [rule["host"] for rule in ingress["spec"]["rules"]] == ["llm.example.com", "chat.example.com"]
    for rule in ingress["spec"]["rules"]:
        (path,) = rule["http"]["paths"]
        assert (path["path"], path["pathType"]) == ("/v1", "Prefix")
        target = path["backend"]["service"]
        service = rendered.one("Service", target["name"])
        assert target["port"]["name"] in [port["name"] for port in service["spec"]["ports"]]


def test_helm_test_asks_services_that_are_there(chart: Chart) -> None:
    rendered = chart.render()
    pod = rendered.one("Pod")
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    (container,) = pod["spec"]["containers"]
    assert container["image"] == container_of(rendered.router)["image"]
    _, ready, models = container["args"]
    assert (ready, models) == ("http://kvring-control:8081/readyz", "http://kvring-router:80/v1/models")
    for name, port in (("kvring-control", 8081), ("kvring-router", 80)):
        assert rendered.one("Service", name)["spec"]["ports"][0]["port"] == port
    assert not chart.render({"router": {"replicas": 0}}).all("Pod")
