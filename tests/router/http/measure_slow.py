"""What clients that do not read cost a router: bytes held of each answer, and memory for four at once.

python -m tests.router.http.measure_slow
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.router.http.alone import connect, post
from tests.router.http.feeding import ANSWER_BYTES, STREAM, Feeding, fed, held, settled
from tests.router.scripted import BODY, until

_CLIENTS = 4


async def main() -> None:
    """Measure and print."""
    with TemporaryDirectory() as logs:
        async with fed("opaque", Path(logs)) as (_, replica, router):
            loop = asyncio.get_running_loop()
            for kind in ("opaque", "json", "events", "one event"):
                before = router.resident_bytes()
                pairs = []
                for _ in range(_CLIENTS):
                    feeding = Feeding(kind)
                    replica.answer = feeding.answer
                    client = await connect(router.port, 4096)
                    await loop.sock_sendall(client, post(STREAM if "event" in kind else BODY))
                    await until(feeding.begun)
                    pairs.append((feeding, client))
                for feeding, _client in pairs:
                    await settled(lambda: feeding.in_kernel)  # noqa: B023 - awaited in its turn
                most = max(held(feeding, router, client, 0) for feeding, client in pairs)
                grown = router.resident_bytes() - before
                sys.stdout.write(
                    f"{kind:10} {_CLIENTS} answers of {ANSWER_BYTES / 1e6:.0f} MB, not read: "
                    f"at most {most / 1024:.0f} KiB held of each, {grown / 1e6:.1f} MB more resident\n"
                )
                for _feeding, client in pairs:
                    client.close()
                await until(lambda: replica.running == 0)


if __name__ == "__main__":
    asyncio.run(main())
