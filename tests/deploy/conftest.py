"""Fixtures for the chart's tests."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.deploy.chart import Chart
from tests.deploy.tools import ToolMissing, crd_models, helm_binary


@pytest.fixture(scope="session")
def helm() -> Path:
    """A real helm; tests are skipped where it cannot be had, but never in continuous integration."""
    return _had(helm_binary)


@pytest.fixture(scope="session")
def crds() -> Path:
    """Models of CRDs for node; skipped and failed as helm is."""
    return _had(crd_models)


def _had(tool: Callable[[], Path]) -> Path:
    try:
        return tool()
    except ToolMissing as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))


@pytest.fixture
def chart(helm: Path, tmp_path: Path) -> Chart:
    """The chart, rendered in a directory of the test's own."""
    return Chart(helm, tmp_path)
