"""Runs a part of the bench as a child that never outlives its parent: `python -P child.py PARENT PART ...`.

PARENT is the parent's process id. The parts are `mock PORT...`, `caller`, and `run COMMAND...`, which becomes
another program.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> None:
    """Tie this process to its parent, then do its part."""
    # Last, so that a package that is installed already stays the one in use.
    sys.path.append(str(Path(__file__).resolve().parents[3]))
    from loadgen.tether import tie_to

    parent, part, *arguments = sys.argv[1:]
    tie_to(int(parent))
    if part == "run":
        os.execv(arguments[0], arguments)
    if part == "mock":
        from loadgen.bench.relay.mock import main as serve

        serve([int(port) for port in arguments])
    else:
        from loadgen.bench.relay.caller import main as call

        call()


if __name__ == "__main__":
    main()
