"""Who reaches whom, by the text of the chart's network policies."""

from __future__ import annotations

from typing import Any

import pytest

from tests.deploy.chart import (
    Chart,
    ChartRefused,
    Manifest,
    Rendered,
    component_of,
    container_of,
)
from tests.deploy.values import ALL_SET, PICKER

_PROMETHEUS = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}


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


def test_a_picker_without_policies_needs_no_gateways(chart: Chart) -> None:
    off = {**PICKER, "networkPolicy": {"enabled": False}}
    assert not chart.render(off).all("NetworkPolicy")


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


def test_ways_out_follow_the_addresses_among_the_options(chart: Chart) -> None:
    peer = {"podSelector": {"matchLabels": {"a": "b"}}}
    config: dict[str, Any] = {
        "observe": {"traces": {"endpoint": "http://collector:4318/v1/traces"}},
        "redis": {"url": "redis://redis:6380/0"},
        "fleet": {
            "kubernetes": {"url": "https://[fd00::1]:6444", "port": "http"},
            "dns": {"nameservers": ["10.0.0.10", "10.0.0.11:5353", "fd00::2"]},
        },
    }
    values = {
        "networkPolicy": {"egress": {"enabled": True, "traces": [peer]}},
        "router": {"config": config},
        "replica": {"config": {"lease": {"redis": "redis://other:6390"}}},
    }
    rendered = chart.render(values)
    anybody = ["anybody"]
    assert _allowed(rendered, "router", "egress") == {
        "53": anybody * 2,
        "5353": anybody * 2,
        "6444": anybody,
        "http": [_pods("replica")],
        "4318": [peer],
        "6380": anybody,
    }
    assert _allowed(rendered, "replica", "egress") == {"53": anybody * 2, "6390": anybody}
    # Without a number it is the scheme's.
    config["observe"]["traces"]["endpoint"] = "https://collector"
    config["redis"]["url"] = "rediss://redis"
    del config["fleet"]
    assert set(_allowed(chart.render(values), "router", "egress")) == {"53", "443", "6443", "http", "6379"}
    assert _allowed(chart.render(values), "router", "egress")["443"] == [*anybody, peer]
    # A socket is no way out; a Secret's URL, which goes first, is not known.
    config["redis"]["url"] = "unix:///run/redis"
    assert "6379" not in _allowed(chart.render(values), "router", "egress")
    config["redis"]["url"] = "redis://redis:6380"
    secret = {"redisSecret": {"name": "redis"}}
    assert {"6379", "6380"} & set(_allowed(chart.render({**values, **secret}), "router", "egress")) == {
        "6379"
    }


@pytest.mark.parametrize(
    "fleet",
    [
        {"replicas": [{"name": "a", "url": "http://a:8000"}]},
        {"kubernetes": {"service": "other"}},
        {"dns": {"host": "other"}},
    ],
)
def test_replicas_elsewhere_need_a_way_out(chart: Chart, fleet: dict[str, Any]) -> None:
    egress: dict[str, Any] = {"enabled": True}
    values = {"router": {"config": {"fleet": fleet}}, "networkPolicy": {"egress": egress}}
    with pytest.raises(ChartRefused) as refusal:
        chart.render(values)
    assert "must let routers out" in str(refusal.value)
    egress["extra"] = [{"to": [{"podSelector": {}}], "ports": [{"port": 8000, "protocol": "TCP"}]}]
    assert "8000" in _allowed(chart.render(values), "router", "egress")


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
