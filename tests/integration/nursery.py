"""Starts replicas quickly: imports what they need once, and forks one for each line of options it reads.

`python nursery.py PARENT_PID RUNNER`; it answers each line with the pid of the fork. All end with their
parent.
"""

from __future__ import annotations

import json
import os
import signal
import sys


def main() -> None:
    """Serve until the input ends."""
    from loadgen.tether import tie_to

    tie_to(int(sys.argv[1]))
    from replica.app import run
    from replica.options import ReplicaOptions

    if sys.argv[2] == "torch":
        import replica.runner.torch_runner  # noqa: F401

    # Forks that were killed are not waited for.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    nursery = os.getpid()
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            tie_to(nursery)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            # What a replica says belongs in the log, not among the pids.
            os.dup2(2, 1)
            run(ReplicaOptions.load(flags=json.loads(line)))
            os._exit(0)
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
