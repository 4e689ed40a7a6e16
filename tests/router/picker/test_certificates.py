"""Gateways that come by TLS, as most do that were not told otherwise."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner
from grpc_health.v1 import health_pb2, health_pb2_grpc

from loadgen.cli import kvring
from tests.router.picker.gateway import decided, destination_of, stream_on
from tests.router.picker.rig import envoy_rig, picker_rig

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


def read(file: str) -> bytes:
    """Return what is in a file."""
    return Path(file).read_bytes()


def certify(directory: Path, name: str = "tls") -> dict[str, str]:
    """Write a certificate that signs itself; return the picker's options for it."""
    certificate, key = directory / f"{name}.crt", directory / f"{name}.key"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "1",
        "-subj",
        "/CN=picker",
    ]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return {"certificate_file": str(certificate), "key_file": str(key)}


def by_tls(config: dict[str, Any]) -> None:
    """Let Envoy come by TLS, whoever signed it."""
    cluster = next(one for one in config["static_resources"]["clusters"] if one["name"] == "picker")
    cluster["transport_socket"] = {
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"
        },
    }


async def test_envoy_comes_by_tls(tmp_path: Path) -> None:
    async with envoy_rig(tmp_path, by_tls, picker=certify(tmp_path)) as (rig, front):
        body = {"model": "m", "messages": [{"role": "user", "content": "Tell me of the sea."}]}
        status, _, response = await rig.post(front, body)
        assert status == 200
        # By the picker's choice: without it, nobody would have said who it was.
        assert response.headers["x-kvring-replica"]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{rig.picker.health_port}") as channel:
            # Kubelets probe without.
            await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())


async def test_a_renewed_certificate_is_taken_up_and_a_bad_one_is_not(tmp_path: Path) -> None:
    files = certify(tmp_path)
    async with picker_rig(count=1, picker=files) as rig:

        async def trusts(root: bytes) -> bool:
            credentials = grpc.ssl_channel_credentials(root)
            address = f"127.0.0.1:{rig.picker.port}"
            async with grpc.aio.secure_channel(address, credentials) as channel:
                try:
                    return bool(destination_of(await decided(stream_on(channel))))
                except grpc.aio.AioRpcError:
                    return False

        first = read(files["certificate_file"])
        assert await trusts(first)
        certify(tmp_path)
        second = read(files["certificate_file"])
        assert await trusts(second)
        assert not await trusts(first)
        shutil.copy(__file__, files["certificate_file"])
        assert await trusts(second)


def test_what_is_no_certificate_is_said_at_the_start(tmp_path: Path) -> None:
    files = certify(tmp_path)
    other = certify(tmp_path, "other")
    for certificate, key in (
        (files["certificate_file"], str(tmp_path / "absent")),
        (files["certificate_file"], other["key_file"]),
        (str(tmp_path), files["key_file"]),
    ):
        sets = ["--set", f'picker.certificate_file="{certificate}"', "--set", f'picker.key_file="{key}"']
        result = CliRunner().invoke(kvring, ["picker", *sets])
        assert result.exit_code == 1, result.output
        assert "the picker cannot run" in result.output
    result = CliRunner().invoke(kvring, ["picker", "--set", f'picker.key_file="{files["key_file"]}"'])
    assert result.exit_code == 2
    assert "go together" in result.output
