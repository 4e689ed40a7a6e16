"""Values that the chart is rendered with, beside its examples: between them, all that can be turned on."""

from __future__ import annotations

from typing import Any

_POD: dict[str, Any] = {
    "podAnnotations": {"prometheus.io/scrape": "true"},
    "podLabels": {"team": "chat"},
    "nodeSelector": {"disk": "fast"},
    "tolerations": [{"key": "spot", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {}},
    "topologySpreadConstraints": [
        {"maxSkew": 2, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"}
    ],
    "priorityClassName": "high",
    "runtimeClassName": "nvidia",
    "extraEnv": [{"name": "OMP_NUM_THREADS", "value": "1"}],
    "extraVolumes": [{"name": "models", "emptyDir": {}}],
    "extraVolumeMounts": [{"name": "models", "mountPath": "/models"}],
}
_ACCOUNT = {"serviceAccount": {"annotations": {"a": "b"}}}
_PEERS = [{"podSelector": {"matchLabels": {"a": "b"}}}]
# A picker, and whom it is for: without, the chart refuses.
PICKER: dict[str, Any] = {"picker": {"enabled": True}, "networkPolicy": {"gateways": _PEERS}}

ALL_SET: dict[str, Any] = {
    "chainSeedSecret": {"name": "kvring-seed", "key": "root"},
    "redisSecret": {"name": "kvring-redis"},
    "imagePullSecrets": [{"name": "registry"}],
    "router": {
        **_POD,
        **_ACCOUNT,
        "service": {"type": "LoadBalancer", "annotations": {"a": "b"}},
        "autoscaling": {"kind": "hpa", "behavior": {"scaleDown": {"stabilizationWindowSeconds": 60}}},
    },
    "replica": {
        **_POD,
        **_ACCOUNT,
        "gpu": {"count": 2},
        "config": {"events": {"enabled": True, "replay_endpoint": "tcp://*:5558"}},
        "autoscaling": {"kind": "keda", "prometheusUrl": "http://prometheus:9090"},
    },
    "picker": {**_POD, "enabled": True, "inferencePool": {"enabled": True, "failureMode": "FailOpen"}},
    "networkPolicy": {
        "clients": _PEERS,
        "gateways": _PEERS,
        "egress": {
            "enabled": True,
            "apiServers": [{"ipBlock": {"cidr": "192.0.2.0/28"}}],
            "redis": _PEERS,
            "extra": [{"to": _PEERS, "ports": [{"port": 4318, "protocol": "TCP"}]}],
        },
    },
    "monitoring": {
        "kind": "ServiceMonitor",
        "labels": {"release": "prometheus"},
        "rules": {"enabled": True},
        "dashboard": {"enabled": True, "annotations": {"grafana_folder": "kvring"}},
    },
    "httpRoute": {
        "enabled": True,
        "parentRefs": [{"name": "inference", "namespace": "gateways", "sectionName": "https"}],
        "hostnames": ["llm.example.com"],
        "annotations": {"a": "b"},
    },
    "ingress": {
        "enabled": True,
        "className": "nginx",
        "hosts": ["llm.example.com", "chat.example.com"],
        "tls": [{"secretName": "tls", "hosts": ["llm.example.com"]}],
    },
}

RENDERED: dict[str, dict[str, Any]] = {
    "defaults": {},
    "all set": ALL_SET,
    "no accounts": {
        "router": {"serviceAccount": {"create": False}},
        "replica": {"serviceAccount": {"create": False, "name": "own"}},
    },
    "a Deployment of replicas, found by DNS": {
        "router": {"discovery": "dns", "config": {"control": {"port": None}}},
        "replica": {"kind": "Deployment", "autoscaling": {"kind": "hpa", "metrics": [{"type": "Resource"}]}},
        "monitoring": {"kind": "PodMonitor"},
    },
    "KEDA for routers": {
        "router": {
            "autoscaling": {"kind": "keda", "triggers": [{"type": "cpu", "metadata": {"value": "70"}}]}
        }
    },
    "bare": {"networkPolicy": {"enabled": False}, "router": {"preStopSleepSeconds": 0, "resources": None}},
}
