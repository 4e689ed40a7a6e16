"""Runs a command as a child that never outlives its parent: `python -P tether.py PARENT_PID COMMAND ...`."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def tie_to(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent dies (Linux; elsewhere only a stop in order ends it).

    The kernel watches the thread that started the child, so start children from the main thread.
    """
    if sys.platform == "linux":
        library = ctypes.CDLL(None, use_errno=True)
        if library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "cannot tie the process to its parent")
    # The parent may have died before the kernel was told.
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Tie this process to its parent, then run the command line on the other arguments."""
    tie_to(int(sys.argv[1]))
    # Last, so that a package that is installed already stays the one in use.
    sys.path.append(str(Path(__file__).resolve().parent.parent))
    from loadgen.cli import main as kvring

    kvring(sys.argv[2:])


if __name__ == "__main__":
    main()
