"""Renders the chart with a real helm, and finds things in what comes out."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm" / "kvring"
# The documented values: the chart's own, and each example over them.
EXAMPLES = sorted((CHART / "examples").glob("*.yaml"))

Manifest = dict[str, Any]
# In C, where it is there: a dashboard is a long text.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class ChartRefused(RuntimeError):
    """Helm would not render; the message is its own."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """All manifests of one rendering."""

    manifests: tuple[Manifest, ...]

    def one(self, kind: str, name: str = "") -> Manifest:
        """The only manifest of this kind (and name)."""
        (found,) = self.all(kind, name)
        return found

    def all(self, kind: str, name: str = "") -> list[Manifest]:
        """All manifests of this kind (and name)."""
        return [
            manifest
            for manifest in self.manifests
            if manifest["kind"] == kind and name in ("", manifest["metadata"]["name"])
        ]

    def workloads(self) -> list[Manifest]:
        """What makes pods."""
        return self.all("Deployment") + self.all("StatefulSet")

    @property
    def router(self) -> Manifest:
        """The router's Deployment."""
        return self.part("router")

    @property
    def replica(self) -> Manifest:
        """What makes the replicas' pods."""
        return self.part("replica")

    def part(self, component: str) -> Manifest:
        """What makes this component's pods."""
        (found,) = [one for one in self.workloads() if component_of(one) == component]
        return found


@dataclass(frozen=True, slots=True)
class Chart:
    """The chart, and a helm to render it with."""

    helm: Path
    scratch: Path

    def lint(self, *files: Path) -> str:
        """Lint strictly; return helm's words, ChartRefused if it objects."""
        return self._run("lint", "--strict", str(CHART), *_files(files))

    def render(self, values: Mapping[str, Any] | None = None, *files: Path, name: str = "kvring") -> Rendered:
        """Render for namespace `ai`, with `values` over `files` over the chart's own."""
        own = self.scratch / "values.yaml"
        own.write_text(yaml.safe_dump(dict(values or {})))
        text = self._run("template", name, str(CHART), "--namespace", "ai", *_files((*files, own)))
        return Rendered(tuple(document for document in yaml.load_all(text, _LOADER) if document))

    def notes(self, values: Mapping[str, Any] | None = None, *files: Path) -> str:
        """What helm says once it has installed this."""
        own = self.scratch / "values.yaml"
        own.write_text(yaml.safe_dump(dict(values or {})))
        dry = ("--dry-run=client", "--namespace", "ai")
        said = self._run("install", "kvring", str(CHART), *dry, *_files((*files, own)))
        return said.split("\nNOTES:\n", 1)[1]

    def _run(self, *arguments: str) -> str:
        done = subprocess.run([self.helm, *arguments], capture_output=True, text=True, timeout=30)
        if done.returncode:
            raise ChartRefused(done.stdout + done.stderr)
        return done.stdout


def _files(files: tuple[Path, ...]) -> list[str]:
    return [argument for file in files for argument in ("--values", str(file))]


def component_of(manifest: Manifest) -> str:
    """What it is of."""
    component: str = manifest["metadata"]["labels"]["app.kubernetes.io/component"]
    return component


def pod_of(workload: Manifest) -> dict[str, Any]:
    """The pod's spec."""
    pod: dict[str, Any] = workload["spec"]["template"]["spec"]
    return pod


def container_of(workload: Manifest) -> dict[str, Any]:
    """The only container."""
    (container,) = pod_of(workload)["containers"]
    found: dict[str, Any] = container
    return found


def mounted(rendered: Rendered, workload: Manifest, scratch: Path) -> Path:
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
