"""Builds a directory once, whole or not at all, however many processes ask for it at the same time."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path


def build_once(directory: Path, build: Callable[[Path], None]) -> Path:
    """Return `directory`, filled by `build` if it is not there yet.

    `build` fills an empty temporary directory beside it, which is then renamed: nobody ever sees half of it.
    Other callers wait at a lock file; the kernel frees that lock when its holder dies.
    """
    if directory.is_dir():
        return directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{directory.name}.partial-"
    with (directory.parent / f".{directory.name}.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if directory.is_dir():
            return directory
        # We hold the lock, so whatever is unfinished here was left by a process that died.
        for stale in directory.parent.glob(f"{prefix}*"):
            shutil.rmtree(stale)
        partial = Path(tempfile.mkdtemp(prefix=prefix, dir=directory.parent))
        try:
            build(partial)
            partial.chmod(0o755)
            os.replace(partial, directory)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    return directory
