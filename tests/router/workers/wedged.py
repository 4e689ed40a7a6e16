"""A supervisor over workers that take no orders, for tests to end from outside; says when all are there."""

from __future__ import annotations

import logging
import os
import sys
from time import sleep

from router.workers import supervisor
from router.workers.place import WorkerPlace


def _serve(place: WorkerPlace, again: bool) -> None:
    os.write(sys.stdout.fileno(), b"a worker is there\n")
    # Not for ever: a test that fails leaves it behind.
    sleep(60)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    supervisor._GRACE_SECONDS = supervisor._KILL_SECONDS = 0.2
    supervisor.Supervisor(2, _serve, lambda: 0.1).run()
