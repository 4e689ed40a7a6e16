"""Who finds, reaches and watches whom: discovery, access to the Kubernetes API, the network, Prometheus."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from tests.deploy.chart import CHART, EXAMPLES, Chart, Manifest, Rendered, component_of, container_of, pod_of
from tests.deploy.values import ALL_SET

_PROMETHEUS = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}


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
        assert rendered.one(kind)["metadata"]["namespace"] == "inference"
    assert rendered.one("RoleBinding")["subjects"][0]["namespace"] == "ai"
    assert chart.render({}, vllm).one("Role")["metadata"]["namespace"] == "ai"


def test_replicas_are_found_whether_ready_or_not(chart: Chart) -> None:
    rendered = chart.render()
    service = rendered.one("Service", rendered.replica["spec"]["serviceName"])["spec"]
    assert service["clusterIP"] == "None"
    assert service["publishNotReadyAddresses"] is True
    assert service["ipFamilyPolicy"] == "SingleStack"


def _allowed(rendered: Rendered, component: str, direction: str = "ingress") -> dict[str, list[Any]]:
    """Each open port, with the peers that may use it; no peers are all."""
    (policy,) = [one for one in rendered.all("NetworkPolicy") if component_of(one) == component]
    assert (
        policy["spec"]["podSelector"]["matchLabels"]
        == (rendered.part(component)["spec"]["selector"]["matchLabels"])
    )
    found: dict[str, list[Any]] = {}
    for rule in policy["spec"][direction]:
        for port in rule["ports"]:
            peers = rule.get("from" if direction == "ingress" else "to", ["anybody"])
            found.setdefault(str(port["port"]), []).extend(peers)
    return found


def _pods(component: str) -> Manifest:
    return {
        "podSelector": {
            "matchLabels": {
                "app.kubernetes.io/name": "kvring",
                "app.kubernetes.io/instance": "kvring",
                "app.kubernetes.io/component": component,
            }
        }
    }


def test_replicas_are_reached_by_routers_and_prometheus_alone(chart: Chart) -> None:
    rendered = chart.render()
    assert _allowed(rendered, "replica") == {"http": [_pods("router"), _PROMETHEUS]}
    assert _allowed(rendered, "router") == {"http": ["anybody"], "control": [_pods("test"), _PROMETHEUS]}
    for policy in rendered.all("NetworkPolicy"):
        assert policy["spec"]["policyTypes"] == ["Ingress"]


def test_with_a_picker_gateways_reach_it_and_replicas(chart: Chart) -> None:
    gateway = {"podSelector": {"matchLabels": {"a": "b"}}}
    rendered = chart.render({"picker": {"enabled": True}, "networkPolicy": {"gateways": [gateway]}})
    assert _allowed(rendered, "replica") == {
        "http": [_pods("router"), _pods("picker"), gateway, _PROMETHEUS],
    }
    assert _allowed(rendered, "picker") == {
        "ext-proc": [gateway],
        "health": [gateway],
        "control": [_PROMETHEUS],
    }


def test_clients_can_be_told_and_the_test_still_comes_through(chart: Chart) -> None:
    client = {"namespaceSelector": {"matchLabels": {"team": "chat"}}}
    rendered = chart.render({"networkPolicy": {"clients": [client], "prometheus": []}})
    assert _allowed(rendered, "router") == {"http": [client, _pods("test")], "control": [_pods("test")]}
    assert _allowed(rendered, "replica") == {"http": [_pods("router")]}
    assert rendered.one("Pod")["metadata"]["labels"].items() >= (
        _pods("test")["podSelector"]["matchLabels"].items()
    )


def test_ways_out_are_names_the_api_replicas_and_redis(chart: Chart) -> None:
    rendered = chart.render(ALL_SET)
    peer = {"podSelector": {"matchLabels": {"a": "b"}}}
    api = {"ipBlock": {"cidr": "192.0.2.0/28"}}
    for component in ("router", "picker"):
        assert _allowed(rendered, component, "egress") == {
            "53": ["anybody", "anybody"],
            "443": [api],
            "6443": [api],
            **{port: [_pods("replica")] for port in ("http", "kv-events", "kv-replay")},
            "4318": [peer],
            "6379": [peer],
        }
    # Replicas call nobody.
    assert _allowed(rendered, "replica", "egress") == {"53": ["anybody", "anybody"]}
    leases = {"router": {"config": {"fleet": {"leases": {"enabled": True}}}}}
    leased = chart.render({**ALL_SET, **leases})
    assert _allowed(leased, "replica", "egress") == {"53": ["anybody", "anybody"], "6379": [peer]}
    by_dns = chart.render({"router": {"discovery": "dns"}, "networkPolicy": {"egress": {"enabled": True}}})
    assert set(_allowed(by_dns, "router", "egress")) == {"53", "http"}


def test_events_are_published_to_routers_alone(chart: Chart) -> None:
    values = {"enabled": True, "replay_endpoint": "tcp://*:5558"}
    rendered = chart.render({"replica": {"config": {"events": values}}})
    ports = {port["name"]: port["containerPort"] for port in container_of(rendered.replica)["ports"]}
    assert ports == {"http": 8000, "kv-events": 5557, "kv-replay": 5558}
    service = rendered.one("Service", rendered.replica["spec"]["serviceName"])["spec"]
    assert {port["name"]: port["port"] for port in service["ports"]} == ports
    assert {port["protocol"] for port in service["ports"]} == {"TCP"}
    # They hold the tokens of every prompt.
    allowed = _allowed(rendered, "replica")
    assert allowed["kv-events"] == allowed["kv-replay"] == [_pods("router")]


@pytest.mark.parametrize("kind", ["PodMonitor", "ServiceMonitor"])
@pytest.mark.parametrize("control", [8081, None])
def test_monitors_select_what_serves_metrics(chart: Chart, kind: str, control: int | None) -> None:
    values = {
        "monitoring": {"kind": kind, "labels": {"release": "p"}, "intervalSeconds": 30},
        "picker": {"enabled": True},
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
