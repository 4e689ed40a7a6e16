"""CPU time and memory of other processes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from loadgen.bench.relay.clocks import cpu_nanoseconds, memory_bytes, process_tree

# Burns CPU in a thread that ends, tells so, and waits.
BUSY = """\
import threading, time
def burn():
    while time.thread_time() < 0.2: pass
thread = threading.Thread(target=burn); thread.start(); thread.join()
print(time.process_time_ns(), flush=True)
input()
"""
PARENT = f"""\
import subprocess, sys
subprocess.run([sys.executable, "-c", {BUSY!r}])
"""


def test_cpu_time_is_that_of_all_threads() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        own = int(child.stdout.readline())
        assert own >= 2e8
        assert own <= cpu_nanoseconds(child.pid) < own + 1e9
        child.stdin.close()
    with pytest.raises(OSError):
        cpu_nanoseconds(child.pid)


def test_a_tree_has_the_children_and_their_memory() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        tree = process_tree(child.pid)
        assert len(tree) == 2
        assert tree[0] == child.pid
        now, peak = memory_bytes(tree)
        alone, _ = memory_bytes(tree[:1])
        assert 0 < alone < now <= peak
        child.stdin.close()
