"""The router runs on its declared dependencies alone: no torch, nothing of replica or loadgen."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

_ROOT = Path(__file__).resolve().parents[2]

_PROGRAM = """
import pkgutil, sys
import router
names = [module.name for module in pkgutil.walk_packages(router.__path__, "router.")]
names = [name for name in names if not name.startswith(tuple(sys.argv[1:]))]
for name in names:
    __import__(name)
assert len(names) > 30, names
for absent in ("torch", "rich", "replica", "loadgen"):
    assert absent not in sys.modules, absent
try:
    import torch
except ImportError:
    print(len(names), "modules")
else:
    raise SystemExit("this environment has torch")
"""


def _closure(name: str, extras: frozenset[str], found: dict[str, Distribution]) -> None:
    """Gather a distribution and all it requires."""
    key = re.sub(r"[-_.]+", "-", name).lower()
    if key in found:
        return
    try:
        found[key] = distribution(name)
    except PackageNotFoundError:
        return
    for line in found[key].requires or ():
        requirement = Requirement(line)
        if requirement.marker is None or any(
            requirement.marker.evaluate({"extra": extra}) for extra in extras or {""}
        ):
            _closure(requirement.name, frozenset(requirement.extras), found)


@pytest.mark.parametrize(
    ("extras", "left_out"),
    [((), ("router.picker", "router.observe.otel")), (("picker", "otel"), ())],
)
def test_every_router_module_imports_without_torch(
    extras: tuple[str, ...], left_out: tuple[str, ...], tmp_path: Path
) -> None:
    found: dict[str, Distribution] = {}
    _closure("kvring", frozenset(extras), found)
    del found["kvring"]
    assert "torch" not in found
    for dist in found.values():
        for file in dist.files or ():
            top = file.parts[0]
            target = Path(str(dist.locate_file(top))).resolve()
            link = tmp_path / top
            if ".." not in file.parts and not link.exists():
                link.symlink_to(target)
    (tmp_path / "router").symlink_to(_ROOT / "router")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{_PROGRAM}"
    done = subprocess.run(
        # -I and -S: neither this environment's packages nor the working directory are in reach.
        [sys.executable, "-I", "-S", "-c", program, *left_out],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "modules" in done.stdout
