"""Files for other programs, checked by those: systemd's units, Prometheus' configuration, Envoy's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from replica.options import ReplicaOptions
from router.config import LimitOptions, RouterConfig
from tests.deploy.chart import ROOT
from tests.deploy.tools import beside_python
from tests.envoy import envoy_or_skip

_DEPLOY = ROOT / "deploy"
_UNITS = sorted((_DEPLOY / "systemd").glob("*.service"))
_INSTALLED = "/opt/kvring/bin/kvring"
# Of 10, as `systemd-analyze security` counts.
_MOST_EXPOSED = 2.5


def _checked(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def _program(name: str, required: bool = False) -> str:
    found = beside_python(name)
    if found is None:
        if required and os.environ.get("CI") == "true":
            raise AssertionError(f"{name} is not installed")
        pytest.skip(f"{name} is not installed")
    return found


@pytest.fixture(params=_UNITS, ids=lambda unit: unit.name)
def unit(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A unit with the program that is here in it, under the name that an instance has."""
    source: Path = request.param
    text = source.read_text()
    assert _INSTALLED in text
    target = tmp_path / source.name.replace("@.", "@8001.")
    target.write_text(text.replace(_INSTALLED, str(Path(sys.executable).parent / "kvring")))
    return target


def test_systemd_accepts_the_units(unit: Path) -> None:
    assert _checked(_program("systemd-analyze"), "verify", "--man=no", unit) == ""


def test_units_may_do_little(unit: Path) -> None:
    told = _checked(_program("systemd-analyze"), "security", "--offline=yes", "--no-pager", unit)
    level = re.search(r"exposure level for \S+: ([0-9.]+)", told)
    assert level is not None
    assert float(level[1]) <= _MOST_EXPOSED
    lines = unit.read_text().splitlines()
    for setting in ("DynamicUser=yes", "NoNewPrivileges=yes", "ProtectSystem=strict", "KillSignal=SIGTERM"):
        assert setting in lines


def _seconds(unit: str) -> int:
    found = re.search(r"^TimeoutStopSec=(\d+)$", (_DEPLOY / "systemd" / unit).read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])


def test_units_wait_for_the_drain() -> None:
    limits = LimitOptions()
    assert _seconds("kvring-router.service") > limits.drain_seconds + limits.drain_notice_seconds
    assert _seconds("kvring-replica@.service") > ReplicaOptions.load().drain_seconds + 11


def test_replicas_of_units_have_lasting_names(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (_DEPLOY / "systemd" / "kvring-replica@.service").read_text()
    (line,) = re.findall(r"^Environment=(KVRING_REPLICA_NAME.+)$", text, re.MULTILINE)
    for pair in line.replace("%l", "gpu-host").replace("%i", "8001").split():
        monkeypatch.setenv(*pair.split("="))
    options = ReplicaOptions.load()
    assert (options.name, options.port) == ("gpu-host-8001", 8001)


def test_the_files_for_the_units_are_options_that_serve_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = (_DEPLOY / "README.md").read_text().split("## systemd")[1].split("\n## ")[0]
    texts = re.findall(r"^```toml\n(.+?)^```$", section, re.MULTILINE | re.DOTALL)
    router_file, replica_file = (tmp_path / name for name in ("router.toml", "replica.toml"))
    for file, text in zip((router_file, replica_file), texts, strict=True):
        file.write_text(text)
    router = RouterConfig.load(router_file)
    names = {replica.name: replica.url for replica in router.fleet.replicas}
    for port in (8001, 8002):
        monkeypatch.setenv("KVRING_REPLICA_NAME", f"gpu-host-{port}")
        monkeypatch.setenv("KVRING_REPLICA_PORT", str(port))
        replica = ReplicaOptions.load(replica_file)
        assert names.pop(replica.name).endswith(f":{replica.port}")
        assert replica.host == router.listen.host == "0.0.0.0"
        assert list(router.models) == [replica.model]
        assert str(router.models[replica.model].tokenizer_directory) == replica.model_directory
    assert not names


def test_prometheus_accepts_its_configuration_and_the_rules() -> None:
    told = _checked(
        _program("promtool", required=True), "check", "config", _DEPLOY / "prometheus" / "prometheus.yml"
    )
    assert re.search(r"SUCCESS: [1-9]\d* rules found", told)


def test_envoy_accepts_its_configuration() -> None:
    told = _checked(envoy_or_skip(), "--mode", "validate", "--config-path", _DEPLOY / "envoy" / "envoy.yaml")
    assert "OK" in told
