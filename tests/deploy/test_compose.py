"""The compose file: what runs on one machine, contained, draining, and finding each other."""

from __future__ import annotations

import subprocess
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from replica.options import ReplicaOptions
from router.config import RouterConfig
from tests.deploy.chart import ROOT
from tests.deploy.tools import beside_python

_DEPLOY = ROOT / "deploy"
_COMPOSE = _DEPLOY / "compose.yaml"
_OF_ROUTERS = ("router", "picker")
# Images of others keep their own manners of being asked and stopped.
_OTHERS = ("redis", "prometheus", "envoy")


def _services() -> dict[str, dict[str, Any]]:
    services: dict[str, dict[str, Any]] = yaml.safe_load(_COMPOSE.read_text())["services"]
    return services


def _replicas() -> dict[str, dict[str, Any]]:
    return {name: one for name, one in _services().items() if name not in (*_OF_ROUTERS, *_OTHERS)}


@pytest.mark.parametrize("profile", [[], ["--profile", "gateway"]])
def test_compose_accepts_its_file(profile: list[str]) -> None:
    compose = beside_python("docker-compose")
    if compose is None:
        pytest.skip("docker-compose is not installed")
    done = subprocess.run(
        [compose, "-f", str(_COMPOSE), *profile, "config", "-q"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_routers_know_each_replica_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    services = _services()
    config = RouterConfig.load(_DEPLOY / "router.toml")
    found = {}
    for name, service in _replicas().items():
        for variable, value in service["environment"].items():
            monkeypatch.setenv(variable, value)
        options = ReplicaOptions.load()
        found[options.name] = f"http://{name}:{options.port}"
    assert {replica.name: replica.url for replica in config.fleet.replicas} == found
    assert len(found) == 3
    assert list(config.models) == [ReplicaOptions.load().model]
    for name in _OF_ROUTERS:
        assert services[name]["command"] == ["--config", "/etc/kvring/router.toml"]
        assert services[name]["volumes"] == ["./router.toml:/etc/kvring/router.toml:ro"]
    redis = urlsplit(config.redis.url.get_secret_value())
    assert redis.hostname in services


def test_ports_are_open_to_this_machine_alone() -> None:
    config = RouterConfig.load(_DEPLOY / "router.toml")
    services = _services()
    assert services["router"]["ports"] == [
        f"127.0.0.1:{port}:{port}" for port in (config.listen.port, config.control.port)
    ]
    for service in services.values():
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:")
    assert "ports" not in services["redis"]


def test_services_are_contained_and_may_drain() -> None:
    limits = RouterConfig.load(_DEPLOY / "router.toml").limits
    longest = max(limits.drain_seconds, ReplicaOptions.load().drain_seconds + 11)
    for name, service in _services().items():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert "/tmp" in service["tmpfs"]
        if name in _OTHERS:
            # A version, as for our own.
            assert ":" in service["image"]
            assert not service["image"].endswith(":latest")
            assert service["user"].split(":")[0] != "0"
        else:
            assert int(service["stop_grace_period"].removesuffix("s")) > longest, name
            assert (_DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).exists()


def test_health_checks_ask_what_is_served() -> None:
    control = RouterConfig.load(_DEPLOY / "router.toml").control.port
    asked = {"router": (control, "/readyz"), "picker": (9090, "/readyz")}
    for name, service in _services().items():
        if name in _OTHERS:
            continue
        port, path = asked.get(name, (8000, "/health"))
        check = service["healthcheck"]["test"]
        assert check[:3] == ["CMD", "python", "-c"]
        assert f"http://127.0.0.1:{port}{path}" in check[3]
        compile(check[3], name, "exec")


def test_the_picker_listens_where_envoy_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    services = _services()
    for variable, value in services["picker"]["environment"].items():
        monkeypatch.setenv(variable, value)
    config = RouterConfig.load(_DEPLOY / "router.toml")
    assert services["picker"]["entrypoint"] == ["kvring", "picker"]
    assert (config.picker.host, config.control.port) == ("0.0.0.0", 9090)
    (mounted,) = services["envoy"]["volumes"]
    clusters = yaml.safe_load((_DEPLOY / mounted.split(":")[0]).read_text())["static_resources"]["clusters"]
    members = {
        cluster["name"]: {
            (address["address"], address["port_value"])
            for endpoint in cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
            for address in [endpoint["endpoint"]["address"]["socket_address"]]
        }
        for cluster in clusters
    }
    assert members["picker"] == {("picker", config.picker.port)}
    assert members["replicas"] == {(name, 8000) for name in _replicas()}
    assert services["envoy"]["profiles"] == services["picker"]["profiles"]


def test_prometheus_looks_where_metrics_are() -> None:
    config = RouterConfig.load(_DEPLOY / "router.toml")
    prometheus = yaml.safe_load((_DEPLOY / "prometheus" / "prometheus.yml").read_text())
    jobs = {job["job_name"]: job for job in prometheus["scrape_configs"]}
    for name, port in (("router", config.control.port), ("picker", 9090)):
        (found,) = jobs[f"kvring-{name}"]["dns_sd_configs"]
        assert (found["names"], found["port"]) == ([name], port)
    (replicas,) = jobs["kvring-replica"]["static_configs"]
    assert replicas["targets"] == [f"{name}:8000" for name in _replicas()]
    mounted = _services()["prometheus"]["volumes"]
    assert mounted == ["./prometheus:/etc/prometheus:ro"]
    for file in prometheus["rule_files"]:
        assert (_DEPLOY / "prometheus" / file).exists()
