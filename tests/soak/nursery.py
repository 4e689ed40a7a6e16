"""Starts replicas of the soak quickly: imports once, and forks one for each line of options it reads.

`python nursery.py PARENT_PID`; it answers each line with the pid of the fork. All end with their parent.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from dataclasses import replace

import uvloop

from loadgen.tether import tie_to
from replica.app import RunningReplica
from replica.loading import Loaded
from replica.options import ReplicaOptions
from replica.server import Ready
from router.settings import start_log
from tests.soak.answers import SeededRunner


class SeededReplica(RunningReplica):
    """A replica with a pool of blocks, a scheduler and an API, whose answers can be told apart."""

    def _assemble(self, loaded: Loaded) -> Ready:
        echo = self.options.echo
        runner = SeededRunner(
            prefill=echo.prefill.cost(),
            decode_seconds=echo.decode_seconds,
            block_tokens=self.options.chain.block_tokens,
            block_count=echo.block_count,
            context_tokens=echo.context_tokens,
        )
        return super()._assemble(replace(loaded, runner=runner))


async def _serve(options: ReplicaOptions) -> None:
    replica = SeededReplica(options)
    await replica.open()
    await replica.loaded()
    # Until it is killed.
    await asyncio.Event().wait()


def main() -> None:
    """Serve until the input ends."""
    tie_to(int(sys.argv[1]))
    # Forks that were killed are not waited for.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    nursery = os.getpid()
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            tie_to(nursery)
            # What a replica says belongs in the log, not among the pids.
            os.dup2(2, 1)
            options = ReplicaOptions.load(flags=json.loads(line))
            start_log(options.log_level)
            uvloop.run(_serve(options))
            os._exit(0)
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
