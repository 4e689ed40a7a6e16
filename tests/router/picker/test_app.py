"""The picker as a program: health, metrics, signals, ports, options."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import grpc
import pytest
from click.testing import CliRunner
from grpc_health.v1 import health_pb2, health_pb2_grpc

from loadgen.children import Child, free_ports, start_child, stop_children, wait_until_ready
from loadgen.cli import kvring
from router.config import RouterConfig
from router.picker.app import EndpointPicker
from tests.router.picker.gateway import (
    channel_to,
    decided,
    destination_of,
    ended,
    request_head,
    response_head,
    stream_on,
)
from tests.router.picker.rig import picker_rig
from tests.router.scripted import ScriptedReplica, until

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
EXT_PROC = "envoy.service.ext_proc.v3.ExternalProcessor"


async def health_of(port: int, name: str) -> int:
    """Ask for the health of a service."""
    async with channel_to(port) as channel:
        request = health_pb2.HealthCheckRequest(service=name)
        return int((await health_pb2_grpc.HealthStub(channel).Check(request)).status)


async def health_becomes(port: int, name: str, status: int) -> None:
    """Wait for it."""
    async with asyncio.timeout(5):
        while await health_of(port, name) != status:  # noqa: ASYNC110 - looked at from outside
            await asyncio.sleep(0.01)


async def test_health_tells_whether_requests_may_come() -> None:
    async with picker_rig(count=1) as rig:
        picker = rig.picker
        for port in (picker.port, picker.health_port):
            for name in ("", EXT_PROC, "readiness", "liveness"):
                await health_becomes(port, name, SERVING)
            with pytest.raises(grpc.aio.AioRpcError) as unknown:
                await health_of(port, "nobody")
            assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
        await rig.replicas[0].stop()
        await health_becomes(picker.health_port, EXT_PROC, NOT_SERVING)
        assert await health_of(picker.health_port, "liveness") == SERVING


async def test_control_serves_probes_and_metrics() -> None:
    async with picker_rig() as rig, channel_to(rig.picker.port) as channel:
        call = stream_on(channel)
        assert destination_of(await decided(call))
        for path, status in (("/healthz", 200), ("/readyz", 200), ("/nothing", 404)):
            async with rig.session.get(rig.picker.control_address + path) as response:
                assert response.status == status
        async with rig.session.get(rig.picker.control_address + "/metrics") as response:
            text = await response.text()
        assert "kvring_in_flight_requests 1.0" in text
        assert "kvring_picker_unaddressed_replicas 0.0" in text
        assert 'kvring_replica_in_flight_requests{replica="r' in text
        call.cancel()


async def test_replicas_given_by_name_are_found_and_others_are_passed_over() -> None:
    replica = ScriptedReplica("r0")
    await replica.start()
    port = replica.url.rpartition(":")[2]
    members = [
        {"name": "r0", "url": f"http://localhost:{port}"},
        {"name": "lost", "url": f"http://no-such-host.invalid:{port}"},
    ]
    flags = {
        "control": {"port": 0},
        "picker": {"port": 0, "health_port": 0},
        "fleet": {"replicas": members, "state_poll_seconds": 0.05},
    }
    picker = EndpointPicker(RouterConfig.load(flags=flags))
    await picker.start()
    try:
        await until(lambda: picker.core.fleet.routable_count == 1)
        async with channel_to(picker.port) as channel:
            await until(lambda: picker._addresses.unknown == 1)
            answer = await decided(stream_on(channel))
            assert destination_of(answer) in ([f"127.0.0.1:{port}"], [f"[::1]:{port}"])
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{picker.control_address}/metrics") as response,
        ):
            assert "kvring_picker_unaddressed_replicas 1.0" in await response.text()
    finally:
        await picker.stop()
        await replica.stop()


async def test_other_options_are_taken_up_from_the_next_request_on() -> None:
    async with picker_rig() as rig, channel_to(rig.picker.port) as channel:
        old = rig.picker.core.serving.config
        changed = RouterConfig.load(
            flags=old.model_dump(exclude={"redis"}) | {"policy": {"name": "round_robin"}}
        )
        rig.picker.reload(changed)
        firsts = set()
        for _ in range(3):
            call = stream_on(channel)
            firsts.add(destination_of(await decided(call))[0])
            await call.write(response_head())
            await call.read()
            call.cancel()
        assert len(firsts) == 3


@asynccontextmanager
async def program(
    replica: ScriptedReplica, logs: Path, *settings: str
) -> AsyncIterator[tuple[Child, int, str]]:
    """Run `kvring picker` as its own process."""
    port, health, control = free_ports(3)
    config = logs / "kvring.toml"
    config.write_text(
        f'[fleet]\nreplicas = [{{ name = "{replica.name}", url = "{replica.url}" }}]\n'
        f"[picker]\nport = {port}\nhealth_port = {health}\n[control]\nport = {control}\n"
    )
    arguments = ["picker", "--config", str(config)]
    for setting in settings:
        arguments += ["--set", setting]
    child = start_child("picker", arguments, logs, {})
    try:
        await wait_until_ready(child, f"http://127.0.0.1:{control}/readyz", 30)
        yield child, port, f"http://127.0.0.1:{control}"
    finally:
        await stop_children([child], 2.0)


async def test_it_ends_when_told_and_answers_what_it_was_asked(tmp_path: Path) -> None:
    replica = ScriptedReplica("r0")
    await replica.start()
    try:
        async with program(replica, tmp_path, "limits.drain_notice_seconds=0.3") as (child, port, control):
            async with channel_to(port) as channel:
                answering, asked = stream_on(channel), stream_on(channel)
                for call in (answering, asked):
                    assert destination_of(await decided(call))
                await answering.write(response_head())
                await answering.read()
                child.process.send_signal(signal.SIGTERM)
                # Whose answer has begun is let go at once, and well.
                assert await ended(answering)
                assert await answering.code() is grpc.StatusCode.OK
                async with aiohttp.ClientSession() as session, session.get(f"{control}/readyz") as response:
                    assert response.status == 503
                late = stream_on(channel)
                assert destination_of(await decided(late, request_head()))
                for call in (asked, late):
                    await call.write(response_head())
                    assert (await call.read()).HasField("response_headers")
                    assert await ended(call)
                    assert await call.code() is grpc.StatusCode.OK
            await until(lambda: child.process.poll() is not None)
            assert child.process.returncode == 0
    finally:
        await replica.stop()


def test_a_port_that_is_taken_is_said() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for name in ("picker.port", "picker.health_port", "control.port"):
            sets = {"picker.port": 0, "picker.health_port": 0, "control.port": 0, name: port}
            arguments = ["picker"]
            for key, value in sets.items():
                arguments += ["--set", f"{key}={value}"]
            result = CliRunner().invoke(kvring, arguments)
            assert result.exit_code == 1, result.output
            assert "the picker cannot run" in result.output
            assert str(port) in result.output


def test_unfit_options_are_said() -> None:
    result = CliRunner().invoke(kvring, ["picker", "--set", "picker.fallbacks=99"])
    assert result.exit_code == 2
    assert "picker.fallbacks" in result.output


def test_packages_that_are_missing_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    for name in [name for name in sys.modules if name.startswith("router.picker")]:
        monkeypatch.delitem(sys.modules, name)
    result = CliRunner().invoke(kvring, ["picker"])
    assert result.exit_code == 1
    assert "pip install 'kvring[picker]'" in result.output
