"""What the chart renders is what both programs read, and where it probes they answer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from replica.app import start
from replica.options import ReplicaOptions
from router.app import Router
from router.config import RouterConfig
from tests.deploy.chart import EXAMPLES, Chart, Manifest, Rendered, container_of, pod_of

# As a pod whose program reads options from its environment would see them.
_POD = "kvring-replica-2"
_SEED = "not to be guessed"
_AWKWARD = "quotes \" and ', a \\, a\ttab, a\nline, <&>, {{ braces }}, é, 🜁 = [#]"


def _mounted(rendered: Rendered, workload: Manifest, scratch: Path) -> Path:
    """The file that the container's --config names, as its volume would hold it."""
    container = container_of(workload)
    flag, path = container["args"]
    assert flag == "--config"
    directory, file = str(path).rsplit("/", 1)
    (mount,) = [mount for mount in container["volumeMounts"] if mount["mountPath"] == directory]
    (volume,) = [volume for volume in pod_of(workload)["volumes"] if volume["name"] == mount["name"]]
    text: str = rendered.one("ConfigMap", volume["configMap"]["name"])["data"][file]
    target = scratch / file
    target.write_text(text)
    return target


def _set_environment(workload: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in container_of(workload).get("env", []):
        source = variable.get("valueFrom", {})
        if source.get("fieldRef", {}).get("fieldPath") == "metadata.name":
            monkeypatch.setenv(variable["name"], _POD)
        elif "secretKeyRef" in source:
            monkeypatch.setenv(variable["name"], _SEED)
        else:
            monkeypatch.setenv(variable["name"], variable["value"])


def _router_config(
    chart: Chart, scratch: Path, values: dict[str, Any] | None = None, *files: Path
) -> RouterConfig:
    rendered = chart.render(values, *files)
    return RouterConfig.load(_mounted(rendered, rendered.one("Deployment"), scratch))


def test_routers_find_replicas_and_tokenizer_by_default(chart: Chart, tmp_path: Path) -> None:
    rendered = chart.render(name="prod")
    config = RouterConfig.load(_mounted(rendered, rendered.one("Deployment"), tmp_path))
    replicas = rendered.one("StatefulSet")
    assert config.fleet.dns.host == replicas["spec"]["serviceName"]
    assert config.fleet.dns.port == container_of(replicas)["ports"][0]["containerPort"]
    assert config.listen.port == container_of(rendered.one("Deployment"))["ports"][0]["containerPort"]
    own = ReplicaOptions.load(_mounted(rendered, replicas, tmp_path))
    assert config.models[own.model].tokenizer_directory == Path("/opt/tokenizers/smollm2-135m-instruct")


def test_replicas_are_named_as_their_pods(
    chart: Chart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered = chart.render()
    replicas = rendered.one("StatefulSet")
    _set_environment(replicas, monkeypatch)
    options = ReplicaOptions.load(_mounted(rendered, replicas, tmp_path))
    assert options.name == _POD
    assert options.host == "0.0.0.0"
    assert options.model_directory == "/opt/models/smollm2-135m-instruct"


@pytest.mark.parametrize("secret", [False, True])
def test_routers_and_replicas_share_the_chain(
    chart: Chart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secret: bool
) -> None:
    values: dict[str, Any] = {"router": {"config": {"chain": {"seed": "in the open", "block_tokens": 32}}}}
    if secret:
        values["chainSeedSecret"] = {"name": "seed"}
    rendered = chart.render(values)
    for workload in rendered.workloads():
        _set_environment(workload, monkeypatch)
    router = RouterConfig.load(_mounted(rendered, rendered.one("Deployment"), tmp_path))
    replica = ReplicaOptions.load(_mounted(rendered, rendered.one("StatefulSet"), tmp_path))
    assert router.chain == replica.chain
    assert router.chain.block_tokens == 32
    assert router.chain.seed == (_SEED if secret else "in the open")


def test_a_fleet_of_ones_own_has_no_replicas_of_the_chart(chart: Chart, tmp_path: Path) -> None:
    (vllm,) = [example for example in EXAMPLES if example.stem == "vllm"]
    rendered = chart.render({}, vllm)
    assert not rendered.all("StatefulSet")
    assert len(rendered.all("Service")) == len(rendered.all("PodDisruptionBudget")) == 1
    config = _router_config(chart, tmp_path, {}, vllm)
    assert [replica.name for replica in config.fleet.replicas] == ["vllm-0", "vllm-1"]
    assert not config.fleet.dns.host
    assert list(config.models) == ["meta-llama/Llama-3.1-8B-Instruct"]


def test_gpus_are_asked_for_and_used(chart: Chart, tmp_path: Path) -> None:
    (gpu,) = [example for example in EXAMPLES if example.stem == "gpu"]
    rendered = chart.render({}, gpu)
    replicas = rendered.one("StatefulSet")
    assert container_of(replicas)["resources"]["limits"]["nvidia.com/gpu"] == 1
    options = ReplicaOptions.load(_mounted(rendered, replicas, tmp_path))
    assert options.torch.device == "cuda"
    config = RouterConfig.load(_mounted(rendered, rendered.one("Deployment"), tmp_path))
    assert list(config.models) == [options.model]


def test_any_value_survives_the_way_to_the_program(chart: Chart, tmp_path: Path) -> None:
    config = _router_config(
        chart,
        tmp_path,
        {
            "router": {
                "config": {
                    "chain": {"seed": _AWKWARD},
                    "models": {'a/b c.d"e': {"tokenizer_directory": "/x y"}, "plain": {}},
                    "policy": {"options": {"ratio": 0.000001, "deep": {"list": [1, [2.5, "x"], {}]}}},
                    "limits": {"body_bytes": 33_554_432, "connect_seconds": 1.5},
                    "observe": {"access_log": False},
                    "fleet": {"dns": {"host": "elsewhere.svc", "port": 9000}, "state_poll_seconds": 0.5},
                }
            }
        },
    )
    assert config.chain.seed == _AWKWARD
    assert config.models['a/b c.d"e'].tokenizer_directory == Path("/x y")
    assert config.models["plain"].tokenizer_directory is None
    assert config.policy.options == {"ratio": 0.000001, "deep": {"list": [1, [2.5, "x"], {}]}}
    assert config.limits.body_bytes == 33_554_432
    assert config.limits.connect_seconds == 1.5
    assert config.observe.access_log is False
    assert (config.fleet.dns.host, config.fleet.dns.port) == ("elsewhere.svc", 9000)
    assert config.fleet.state_poll_seconds == 0.5


async def test_programs_answer_where_the_chart_probes(chart: Chart, tmp_path: Path) -> None:
    rendered = chart.render()
    deployment, replicas = rendered.one("Deployment"), rendered.one("StatefulSet")
    # The echo runner stands for the model, which needs seconds to load.
    replica = await start(
        ReplicaOptions.load(
            _mounted(rendered, replicas, tmp_path),
            {"host": "127.0.0.1", "port": 0, "runner": "echo", "model_directory": "", "drain_seconds": 0},
        )
    )
    router = Router(
        RouterConfig.load(
            _mounted(rendered, deployment, tmp_path),
            {
                "listen": {"host": "127.0.0.1", "port": 0},
                "fleet": {"dns": {"host": "localhost", "port": replica.port}, "state_poll_seconds": 0.02},
                # The image's tokenizer is not here.
                "models": {replica.options.model: {"tokenizer_directory": None}},
            },
        )
    )
    try:
        await router.start()
        async with aiohttp.ClientSession() as client:
            for workload, url in ((deployment, router.address), (replicas, replica.url)):
                for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                    path = container_of(workload)[probe]["httpGet"]["path"]
                    await _until_ok(client, url + path)
    finally:
        await router.stop()
        await replica.stop()


async def _until_ok(client: aiohttp.ClientSession, url: str) -> None:
    async with asyncio.timeout(10):
        while True:
            async with client.get(url) as response:
                if response.status == 200:
                    return
                assert response.status == 503, await response.text()
            await asyncio.sleep(0.02)
