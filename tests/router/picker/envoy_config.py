"""The shipped example of an Envoy's configuration, with a test's addresses in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

EXAMPLE = Path(__file__).parents[3] / "deploy" / "envoy" / "envoy.yaml"

Change = Callable[[dict[str, Any]], None]


def envoy_config(picker_port: int, replica_ports: Sequence[int], *changes: Change) -> str:
    """Return the example with these addresses, after `changes` to its ext_proc filter."""
    config: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    config["admin"]["address"]["socket_address"]["port_value"] = 0
    resources = config["static_resources"]
    resources["listeners"][0]["address"] = _address(0)
    clusters = {cluster["name"]: cluster for cluster in resources["clusters"]}
    _replace(clusters["picker"], [picker_port])
    _replace(clusters["replicas"], replica_ports)
    for change in changes:
        change(config)
    return yaml.safe_dump(config)


def manager_of(config: dict[str, Any]) -> dict[str, Any]:
    """Return the connection manager."""
    manager: dict[str, Any] = config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]
    return manager["typed_config"]  # type: ignore[no-any-return]


def ext_proc_of(config: dict[str, Any]) -> dict[str, Any]:
    """Return the filter that asks the picker."""
    filters = manager_of(config)["http_filters"]
    found: dict[str, Any] = next(one for one in filters if one["name"] == "envoy.filters.http.ext_proc")
    return found["typed_config"]  # type: ignore[no-any-return]


def duplex(config: dict[str, Any]) -> None:
    """Let bodies go piece by piece to the picker and back, as some gateways do."""
    mode = ext_proc_of(config)["processing_mode"]
    mode["request_body_mode"] = "FULL_DUPLEX_STREAMED"
    mode["request_trailer_mode"] = "SEND"


def body_mode(mode: str) -> Change:
    """Send bodies in that mode."""

    def change(config: dict[str, Any]) -> None:
        ext_proc_of(config)["processing_mode"]["request_body_mode"] = mode

    return change


def streamed_answers(config: dict[str, Any]) -> None:
    """Send answers to the picker too, unless it says that it does not want them."""
    ext_proc = ext_proc_of(config)
    ext_proc["processing_mode"]["response_body_mode"] = "STREAMED"
    ext_proc["allow_mode_override"] = True


def duplex_answers(config: dict[str, Any]) -> None:
    """Let answers go piece by piece to the picker and back; then nothing it says can change that."""
    duplex(config)
    mode = ext_proc_of(config)["processing_mode"]
    mode["response_body_mode"] = "FULL_DUPLEX_STREAMED"
    mode["response_trailer_mode"] = "SEND"


def fail_closed(config: dict[str, Any]) -> None:
    """Answer 500 where there is no picker."""
    ext_proc_of(config)["failure_mode_allow"] = False


def without_edge(config: dict[str, Any]) -> None:
    """Leave clients' own destination headers to the picker."""
    manager = manager_of(config)
    manager["http_filters"] = [
        one for one in manager["http_filters"] if one["name"] != "envoy.filters.http.header_mutation"
    ]


def subset_of(*addresses: str) -> Change:
    """Restrict the choice, as gateways do that know which endpoints a route may use."""

    def change(config: dict[str, Any]) -> None:
        hint = {"x-gateway-destination-endpoint-subset": ",".join(addresses)}
        manager_of(config)["http_filters"].insert(
            0,
            {
                "name": "envoy.filters.http.set_metadata",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config",
                    "metadata": [{"metadata_namespace": "envoy.lb.subset_hint", "value": hint}],
                },
            },
        )

    return change


def _replace(cluster: dict[str, Any], ports: Sequence[int]) -> None:
    cluster["type"] = "STATIC"
    cluster["load_assignment"]["endpoints"] = [
        {"lb_endpoints": [{"endpoint": {"address": _address(port)}} for port in ports]}
    ]


def _address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}
