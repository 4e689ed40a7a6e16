"""Fixtures for the chart's tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.deploy.chart import Chart
from tests.deploy.tools import ToolMissing, helm_binary


@pytest.fixture(scope="session")
def helm() -> Path:
    """A real helm; tests are skipped where it cannot be had, but never in continuous integration."""
    try:
        return helm_binary()
    except ToolMissing as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"no helm: {error}")


@pytest.fixture
def chart(helm: Path, tmp_path: Path) -> Chart:
    """The chart, rendered in a directory of the test's own."""
    return Chart(helm, tmp_path)
