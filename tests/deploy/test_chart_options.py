"""What the chart renders is what both programs read, and where it probes they answer."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from replica.app import start
from replica.options import ReplicaOptions
from router.app import Router
from router.config import RouterConfig
from tests.deploy.chart import EXAMPLES, Chart, Manifest, Rendered, component_of, container_of, mounted
from tests.deploy.values import PICKER

# As a pod whose program reads options from its environment would see them.
_POD = "kvring-replica-2"
_FIELDS = {"metadata.name": _POD, "status.podIP": "10.0.0.7"}
_SEED = "not to be guessed"
_REDIS = "redis://:password@redis:6379"
_SECRETS = {"kvring-seed": _SEED, "seed": _SEED, "kvring-redis": _REDIS, "redis": _REDIS}
_AWKWARD = "quotes \" and ', a \\, a\ttab, a\nline, <&>, {{ braces }}, é, 🜁 = [#]"


def _set_environment(workload: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in container_of(workload).get("env", []):
        source = variable.get("valueFrom", {})
        if "fieldRef" in source:
            monkeypatch.setenv(variable["name"], _FIELDS[source["fieldRef"]["fieldPath"]])
        elif "secretKeyRef" in source:
            monkeypatch.setenv(variable["name"], _SECRETS[source["secretKeyRef"]["name"]])
        else:
            value = variable["value"].replace("$(POD_IP)", _FIELDS["status.podIP"])
            monkeypatch.setenv(variable["name"], value)


def _router_config(
    chart: Chart, scratch: Path, values: dict[str, Any] | None = None, *files: Path
) -> RouterConfig:
    rendered = chart.render(values, *files)
    return RouterConfig.load(mounted(rendered, rendered.router, scratch))


def test_routers_find_replicas_and_tokenizer_by_default(chart: Chart, tmp_path: Path) -> None:
    rendered = chart.render(name="prod")
    config = RouterConfig.load(mounted(rendered, rendered.router, tmp_path))
    service = rendered.one("Service", config.fleet.kubernetes.service)
    assert service["metadata"]["name"] == rendered.replica["spec"]["serviceName"]
    assert config.fleet.kubernetes.port in [port["name"] for port in service["spec"]["ports"]]
    assert not config.fleet.dns.host
    ports = {port["name"]: port["containerPort"] for port in container_of(rendered.router)["ports"]}
    assert ports == {"http": config.listen.port, "control": config.control.port}
    own = ReplicaOptions.load(mounted(rendered, rendered.replica, tmp_path))
    assert config.models[own.model].tokenizer_directory == Path("/opt/tokenizers/smollm2-135m-instruct")


def test_routers_find_replicas_by_dns_where_told(chart: Chart, tmp_path: Path) -> None:
    values: dict[str, Any] = {"router": {"discovery": "dns"}}
    rendered = chart.render(values)
    config = _router_config(chart, tmp_path, values)
    assert config.fleet.dns.host == rendered.replica["spec"]["serviceName"]
    assert config.fleet.dns.port == container_of(rendered.replica)["ports"][0]["containerPort"]
    assert not config.fleet.kubernetes.service


def test_a_way_to_the_fleet_that_values_tell_is_kept(chart: Chart, tmp_path: Path) -> None:
    fleet: dict[str, Any] = {"kubernetes": {"service": "other", "namespace": "there"}}
    config = _router_config(chart, tmp_path, {"router": {"config": {"fleet": fleet}}})
    assert (config.fleet.kubernetes.service, config.fleet.kubernetes.namespace) == ("other", "there")
    assert not config.fleet.dns.host


def test_leases_are_read_with_the_secret_s_redis(
    chart: Chart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {
        "redisSecret": {"name": "redis"},
        "router": {
            "discovery": "none",
            "config": {"fleet": {"leases": {"enabled": True}}, "redis": {"group": "ours"}},
        },
    }
    rendered = chart.render(values)
    _set_environment(rendered.router, monkeypatch)
    config = RouterConfig.load(mounted(rendered, rendered.router, tmp_path))
    assert config.redis.url.get_secret_value() == _REDIS
    assert config.fleet.leases.enabled
    _set_environment(rendered.replica, monkeypatch)
    lease = ReplicaOptions.load(mounted(rendered, rendered.replica, tmp_path)).lease
    assert lease.redis.get_secret_value() == _REDIS
    assert lease.group == config.redis.group == "ours"
    assert lease.advertise_url == "http://10.0.0.7:8000"


def test_replicas_that_need_no_redis_are_told_none(chart: Chart) -> None:
    replica = container_of(chart.render({"redisSecret": {"name": "redis"}}).replica)
    assert not [variable for variable in replica["env"] if "secretKeyRef" in variable.get("valueFrom", {})]


@pytest.mark.parametrize("own", [False, True])
def test_pickers_read_the_routers_options_and_listen(
    chart: Chart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    rendered = chart.render(
        {
            **PICKER,
            "router": {
                "config": {
                    "picker": {"host": "::"} if own else {},
                    "control": {"host": "fd00::1" if own else "0.0.0.0"},
                }
            },
        }
    )
    picker = rendered.part("picker")
    assert container_of(picker)["command"] == ["kvring", "picker"]
    router = RouterConfig.load(mounted(rendered, rendered.router, tmp_path))
    _set_environment(picker, monkeypatch)
    config = RouterConfig.load(mounted(rendered, picker, tmp_path))
    assert config.fleet == router.fleet
    ports = {port["name"]: port["containerPort"] for port in container_of(picker)["ports"]}
    # Their own default is loopback; a cluster without IPv4 needs others.
    assert (config.picker.host, config.control.host) == (("::", "fd00::1") if own else ("0.0.0.0", "0.0.0.0"))
    assert ports == {
        "ext-proc": config.picker.port,
        "health": config.picker.health_port,
        "control": config.control.port,
    }


def test_replicas_are_named_as_their_pods(
    chart: Chart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered = chart.render()
    replicas = rendered.replica
    _set_environment(replicas, monkeypatch)
    options = ReplicaOptions.load(mounted(rendered, replicas, tmp_path))
    assert options.name == _POD
    assert options.host == "0.0.0.0"
    assert options.model_directory == "/opt/models/smollm2-135m-instruct"


@pytest.mark.parametrize("secret", [False, True])
def test_routers_and_replicas_share_the_chain(
    chart: Chart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secret: bool
) -> None:
    values: dict[str, Any] = {"router": {"config": {"chain": {"block_tokens": 32}}}}
    if secret:
        values["chainSeedSecret"] = {"name": "seed"}
    rendered = chart.render(values)
    for workload in rendered.workloads():
        _set_environment(workload, monkeypatch)
    router = RouterConfig.load(mounted(rendered, rendered.router, tmp_path))
    replica = ReplicaOptions.load(mounted(rendered, rendered.replica, tmp_path))
    assert router.chain == replica.chain
    assert router.chain.block_tokens == 32
    assert router.chain.seed == (_SEED if secret else "kvring")


def test_a_fleet_of_ones_own_has_no_replicas_of_the_chart(chart: Chart, tmp_path: Path) -> None:
    (vllm,) = [example for example in EXAMPLES if example.stem == "vllm"]
    rendered = chart.render({}, vllm)
    assert rendered.workloads() == [rendered.router]
    assert len(rendered.all("PodDisruptionBudget")) == len(rendered.all("ServiceAccount")) == 1
    config = _router_config(chart, tmp_path, {}, vllm)
    assert config.fleet.kubernetes.service == "vllm"
    assert (config.fleet.engine, config.fleet.events.source) == ("vllm", "sidecar")
    assert not config.fleet.dns.host
    assert list(config.models) == ["meta-llama/Llama-3.1-8B-Instruct"]


def test_gpus_are_used(chart: Chart, tmp_path: Path) -> None:
    (gpu,) = [example for example in EXAMPLES if example.stem == "gpu"]
    rendered = chart.render({}, gpu)
    options = ReplicaOptions.load(mounted(rendered, rendered.replica, tmp_path))
    assert options.torch.device == "cuda"
    config = RouterConfig.load(mounted(rendered, rendered.router, tmp_path))
    assert list(config.models) == [options.model]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda file: file.stem)
def test_programs_accept_the_options_of_examples(
    chart: Chart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, example: Path
) -> None:
    rendered = chart.render({}, example)
    for workload in rendered.workloads():
        with monkeypatch.context() as environment:
            _set_environment(workload, environment)
            options = ReplicaOptions if component_of(workload) == "replica" else RouterConfig
            options.load(mounted(rendered, workload, tmp_path))


def test_any_value_survives_the_way_to_the_program(chart: Chart, tmp_path: Path) -> None:
    config = _router_config(
        chart,
        tmp_path,
        {
            "router": {
                "config": {
                    "models": {'a/b c.d"e': {"tokenizer_directory": "/x y"}, "plain": {}},
                    "policy": {"options": {"ratio": 0.000001, "deep": {"list": [1, [2.5, _AWKWARD], {}]}}},
                    "limits": {"body_bytes": 33_554_432, "connect_seconds": 1.5},
                    "observe": {"access_log": False},
                    "fleet": {"dns": {"host": "elsewhere.svc", "port": 9000}, "state_poll_seconds": 0.5},
                }
            }
        },
    )
    assert config.models['a/b c.d"e'].tokenizer_directory == Path("/x y")
    assert config.models["plain"].tokenizer_directory is None
    assert config.policy.options == {"ratio": 0.000001, "deep": {"list": [1, [2.5, _AWKWARD], {}]}}
    assert config.limits.body_bytes == 33_554_432
    assert config.limits.connect_seconds == 1.5
    assert config.observe.access_log is False
    assert (config.fleet.dns.host, config.fleet.dns.port) == ("elsewhere.svc", 9000)
    assert config.fleet.state_poll_seconds == 0.5


@pytest.mark.parametrize("control", [0, None])
async def test_programs_answer_where_the_chart_probes(
    chart: Chart, tmp_path: Path, control: int | None
) -> None:
    rendered = chart.render()
    # The echo runner stands for the model, which needs seconds to load.
    replica = await start(
        ReplicaOptions.load(
            mounted(rendered, rendered.replica, tmp_path),
            {"host": "127.0.0.1", "port": 0, "runner": "echo", "model_directory": "", "drain_seconds": 0},
        )
    )
    router = Router(
        RouterConfig.load(
            mounted(rendered, rendered.router, tmp_path),
            {
                "listen": {"host": "127.0.0.1", "port": 0},
                "control": {"host": "127.0.0.1", "port": control},
                "fleet": {
                    "kubernetes": {"service": ""},
                    "dns": {"host": "localhost", "port": replica.port},
                    "state_poll_seconds": 0.02,
                },
                # The image's tokenizer is not here.
                "models": {replica.options.model: {"tokenizer_directory": None}},
            },
        )
    )
    try:
        await router.start()
        async with aiohttp.ClientSession() as client:
            for workload, url in ((rendered.router, router.control_address), (rendered.replica, replica.url)):
                for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                    path = container_of(workload)[probe]["httpGet"]["path"]
                    await _until_ok(client, url + path)
                # Where monitors look.
                await _until_ok(client, f"{url}/metrics")
        answered = await asyncio.to_thread(_helm_test, rendered, router)
        assert f"served: {replica.options.model}" in answered
    finally:
        await router.stop()
        await replica.stop()


def _helm_test(rendered: Rendered, router: Router) -> str:
    """Run the script of `helm test` against this router, and return what it prints."""
    (container,) = rendered.one("Pod")["spec"]["containers"]
    script, ready, models = container["args"]
    assert container["command"] == ["python", "-c"]
    addresses = [
        router.control_address + ready.removeprefix("http://kvring-control:8081"),
        router.address + models.removeprefix("http://kvring-router:80"),
    ]
    done = subprocess.run(
        [sys.executable, "-c", script, *addresses], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


async def _until_ok(client: aiohttp.ClientSession, url: str) -> None:
    async with asyncio.timeout(10):
        while True:
            async with client.get(url) as response:
                if response.status == 200:
                    return
                assert response.status == 503, await response.text()
            await asyncio.sleep(0.02)
