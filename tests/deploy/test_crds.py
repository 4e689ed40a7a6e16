"""Resources that only CRDs know fit these: Gateway API, KEDA, the Prometheus operator, InferencePool."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml

from tests.deploy.chart import CHART, EXAMPLES, Chart, Manifest, Rendered
from tests.deploy.values import ALL_SET, RENDERED

_CHECKED = {"HTTPRoute", "ScaledObject", "ServiceMonitor", "PodMonitor", "PrometheusRule"}
_NAME = {"type": "string", "minLength": 1, "maxLength": 253}
_PORT = {"type": "integer", "minimum": 1, "maximum": 65_535}


def _object(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        "required": list(required),
    }


# Of inference.networking.k8s.io/v1, from the fields that its reference documents.
_INFERENCE_POOL = _object(
    {
        "selector": _object(
            {
                "matchLabels": {
                    "type": "object",
                    "minProperties": 1,
                    "maxProperties": 64,
                    "additionalProperties": {"type": "string", "maxLength": 63},
                }
            },
            "matchLabels",
        ),
        "targetPorts": {
            "type": "array",
            "minItems": 1,
            "maxItems": 8,
            "uniqueItems": True,
            "items": _object({"number": _PORT}, "number"),
        },
        "appProtocol": {"enum": ["http", "kubernetes.io/h2c"]},
        "endpointPickerRef": _object(
            {
                "group": {"const": ""},
                "kind": {"const": "Service"},
                "name": _NAME,
                "port": _object({"number": _PORT}, "number"),
                "failureMode": {"enum": ["FailOpen", "FailClose"]},
            },
            "name",
            "port",
        ),
    },
    "selector",
    "targetPorts",
    "endpointPickerRef",
)


def _complaints(crds: Path, manifests: list[Manifest]) -> list[str]:
    node = shutil.which("node")
    assert node is not None, "npm comes with it"
    done = subprocess.run(
        [node, str(Path(__file__).parent / "crds.cjs"), str(crds)],
        input="\n".join(json.dumps(manifest) for manifest in manifests),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def _all(chart: Chart) -> list[Rendered]:
    renderings = [chart.render(values) for values in RENDERED.values()]
    return [*renderings, *(chart.render({}, example) for example in EXAMPLES)]


def test_custom_resources_fit_their_schemas(chart: Chart, crds: Path) -> None:
    manifests = [manifest for rendered in _all(chart) for kind in _CHECKED for manifest in rendered.all(kind)]
    manifests.append(yaml.safe_load((CHART / "examples" / "pods" / "vllm-monitor.yaml").read_text()))
    assert {manifest["kind"] for manifest in manifests} == _CHECKED
    complaints = _complaints(crds, manifests)
    assert complaints == [""] * len(manifests)


def test_the_schemas_of_custom_resources_see_faults(chart: Chart, crds: Path) -> None:
    rendered = chart.render(ALL_SET)
    (route,) = rendered.all("HTTPRoute")
    route["spec"]["rules"][0]["timeouts"]["request"] = "none"
    (scaled,) = rendered.all("ScaledObject")
    scaled["spec"]["triggers"][0]["metadata"]["threshold"] = 16
    monitor = rendered.all("ServiceMonitor")[0]
    monitor["spec"]["endpoints"] = "control"
    assert all(_complaints(crds, [route, scaled, monitor]))


def test_inference_pools_have_the_documented_fields(chart: Chart) -> None:
    pools = [(rendered, pool) for rendered in _all(chart) for pool in rendered.all("InferencePool")]
    assert len(pools) >= 2
    for rendered, pool in pools:
        assert pool["apiVersion"] == "inference.networking.k8s.io/v1"
        jsonschema.validate(pool["spec"], _INFERENCE_POOL)
        replica = rendered.replica["spec"]["template"]
        labels = pool["spec"]["selector"]["matchLabels"]
        assert labels.items() <= replica["metadata"]["labels"].items()
        ports = [port["containerPort"] for port in replica["spec"]["containers"][0]["ports"]]
        assert pool["spec"]["targetPorts"][0]["number"] in ports
        picker = pool["spec"]["endpointPickerRef"]
        service = rendered.one("Service", picker["name"])
        assert picker["port"]["number"] in [
            port["port"] for port in service["spec"]["ports"] if port["name"] == "ext-proc"
        ]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**pools[0][1]["spec"], "extensionRef": {"name": "x"}}, _INFERENCE_POOL)


def test_routes_stream_and_lead_to_what_is_there(chart: Chart) -> None:
    rendered = chart.render(ALL_SET)
    (rule,) = rendered.one("HTTPRoute")["spec"]["rules"]
    assert rule["timeouts"] == {"request": "0s"}
    assert rule["matches"] == [{"path": {"type": "PathPrefix", "value": "/v1"}}]
    (backend,) = rule["backendRefs"]
    service = rendered.one("Service", backend["name"])
    assert backend["port"] in [port["port"] for port in service["spec"]["ports"]]
    pooled = chart.render({**ALL_SET, "httpRoute": {**ALL_SET["httpRoute"], "backend": "inferencePool"}})
    (pooled_rule,) = pooled.one("HTTPRoute")["spec"]["rules"]
    # To replicas themselves, which serve more than the API.
    assert pooled_rule["matches"] == rule["matches"]
    (backend,) = pooled_rule["backendRefs"]
    assert backend == {
        "group": "inference.networking.k8s.io",
        "kind": "InferencePool",
        "name": pooled.one("InferencePool")["metadata"]["name"],
    }
