"""Measures what a refusal costs a router whose fleet is full: python -m tests.integration.measure_shed

CPU microseconds a request, kernel included, of the process that holds the router and nothing else that is
busy, and what the client waited; one connection, the same body size time and again.
"""

from __future__ import annotations

import asyncio
import json
import sys
from statistics import quantiles
from time import process_time

from tests.integration.plain_fleet import plain_fleet
from tests.router.scripted import until

_SIZES = (200, 16_384, 131_072)
_REQUESTS = 3000
_ROUNDS = 3

# Asks so many times on one connection, and prints the status seen last and the seconds that each took.
_CLIENT = """\
import json, socket, sys, time
port, size, count = map(int, sys.argv[1:])
body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * size}]}).encode()
head = b"POST /v1/chat/completions HTTP/1.1\\r\\nhost: x\\r\\ncontent-length: %d\\r\\n\\r\\n" % len(body)
wire = socket.create_connection(("127.0.0.1", port))
took = []
for _ in range(count):
    began = time.perf_counter()
    wire.sendall(head + body)
    answer = b""
    while b"\\r\\n\\r\\n" not in answer or not answer.endswith(b"}"):
        answer += wire.recv(65536)
    took.append(time.perf_counter() - began)
print(json.dumps([answer[9:12].decode(), took]))
"""


async def _round(port: int, size: int) -> tuple[float, float]:
    """Return CPU microseconds a refusal, and the 99th percentile of milliseconds to it."""
    began = process_time()
    arguments = ("-c", _CLIENT, str(port), str(size), str(_REQUESTS))
    client = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
    told, _ = await client.communicate()
    spent = process_time() - began
    status, took = json.loads(told)
    if status != "429":
        raise RuntimeError(f"answered {status}")
    return spent / _REQUESTS * 1e6, quantiles(took, n=100)[98] * 1e3


async def main() -> None:
    """Print a line for each size."""
    async with plain_fleet(4, 1, limits={"replica_requests": 1}) as fleet:
        for number in range(4):
            fleet.send(0, f"{number} tells of the sea. ")
        await until(lambda: fleet.in_flight() == [1] * 4)
        port = int(fleet.routers[0].address.rsplit(":", 1)[1])
        for size in _SIZES:
            rounds = [await _round(port, size) for _ in range(_ROUNDS)]
            cpu, wait = min(cpu for cpu, _ in rounds), min(wait for _, wait in rounds)
            sys.stdout.write(f"{size:>7} B: {cpu:.0f} us CPU a refusal, p99 {wait:.2f} ms\n")
        await fleet.let_all_go()


if __name__ == "__main__":
    asyncio.run(main())
