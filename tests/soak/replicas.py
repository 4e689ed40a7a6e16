"""The replicas of the soak: processes that are started, stopped, killed and started again."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP
from typing import Any

from tests.soak.ports import steady_ports

_ROOT = Path(__file__).resolve().parents[2]
_OPTIONS: dict[str, Any] = {
    "model": "m",
    "runner": "echo",
    "model_directory": "",
    "linger_seconds": 0,
    "log_level": "warning",
    "scheduler": {"max_batch_tokens": 16_384},
    "echo": {
        "decode_seconds": 0.012,
        # A prompt of 1 MB takes part of a second, as on a large machine.
        "prefill": {"base_seconds": 0.002, "per_token_seconds": 1e-6, "per_token_context_seconds": 0},
        "block_count": 65_536,
        "context_tokens": 300_000,
    },
}


class Replicas:
    """Forks of one nursery. `close` ends all."""

    def __init__(self, count: int, log: Path) -> None:
        names = (f"r{number}" for number in range(count))
        self.ports = dict(zip(names, steady_ports(count), strict=True))
        self._pids: dict[str, int] = {}
        self._stopped: set[str] = set()
        with log.open("ab") as file:
            self._nursery = subprocess.Popen(
                [sys.executable, "-P", str(Path(__file__).with_name("nursery.py")), str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                env={**os.environ, "PYTHONPATH": str(_ROOT), "OMP_NUM_THREADS": "1"},
                text=True,
            )

    async def start(self, name: str) -> None:
        """Start one; return once it accepts."""
        assert self._nursery.stdin is not None
        assert self._nursery.stdout is not None
        self._nursery.stdin.write(json.dumps(_OPTIONS | {"name": name, "port": self.ports[name]}) + "\n")
        self._nursery.stdin.flush()
        line = await asyncio.to_thread(self._nursery.stdout.readline)
        self._pids[name] = int(line)
        async with asyncio.timeout(30):
            while not await self._accepts(name):  # noqa: ASYNC110 - another process tells of nothing
                await asyncio.sleep(0.05)

    def kill(self, name: str) -> None:
        """Kill one."""
        self._stopped.discard(name)
        os.kill(self._pids.pop(name), SIGKILL)

    def stop(self, name: str) -> None:
        """Let one do nothing any more."""
        self._stopped.add(name)
        os.kill(self._pids[name], SIGSTOP)

    def let_go(self, name: str) -> None:
        """Let it go on."""
        self._stopped.discard(name)
        os.kill(self._pids[name], SIGCONT)

    def close(self) -> None:
        """End all."""
        for pid in self._pids.values():
            os.kill(pid, SIGKILL)
        self._nursery.kill()
        self._nursery.communicate()

    async def _accepts(self, name: str) -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self.ports[name])
        except OSError:
            return False
        writer.close()
        return True
