"""What clients make up adds nothing to the page of metrics: models, paths, sessions, ids, headers."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter

from tests.router.scripted import BODY, Rig, rig

# The ledger takes ten thousand such in its own tests; here they cross the wire.
_REQUESTS = 800
_AT_ONCE = 32
_MOST_BYTES = 200_000
_LETTERS = "abcdefghijklmnopqrstuvwxyzÄß字 \"\\{}='\n/"


def series(page: str) -> set[str]:
    """Names and labels of all series, but those of causes, which are eight and come as they do."""
    lines = {line.rsplit(" ", 1)[0] for line in page.splitlines() if not line.startswith("#")}
    return {line for line in lines if not line.startswith("kvring_uncached_tokens_total")}


def made_up(rng: random.Random) -> str:
    return "".join(rng.choices(_LETTERS, k=rng.randrange(1, 200)))


async def send(up: Rig, rng: random.Random) -> int:
    """Send one request with something made up; return its status."""
    kind = rng.randrange(4)
    headers = {
        "Content-Type": "application/json",
        "x-session-id": rng.randbytes(8).hex(),
        "x-request-id": rng.randbytes(8).hex(),
        "x-stainless-retry-count": str(rng.randrange(10**6)),
    }
    path, body = "/v1/chat/completions", BODY
    if kind == 0:
        body = BODY | {"model": made_up(rng)}
    elif kind == 1:
        path = f"/v1/{rng.randbytes(8).hex()}"
    elif kind == 2:
        body = BODY | {
            "model": f"m-{rng.randrange(10**9)}",
            "messages": BODY["messages"] * rng.randrange(1, 20),
        }
    data = json.dumps(body).encode()
    async with up.session.post(up.router.address + path, data=data, headers=headers) as response:
        await response.read()
        return response.status


async def test_made_up_requests_add_no_series() -> None:
    rng = random.Random(3)
    async with rig(2) as up:
        # One of each kind, so that every series is there that may be.
        await up.post(headers={"Content-Type": "application/json", "x-session-id": "s"})
        for index in range(40):
            await up.post(BODY | {"messages": [{"role": "user", "content": str(index)}]})
        await up.post(BODY | {"model": "nobody"})
        _, before = await up.get("/metrics")
        statuses: Counter[int] = Counter()

        async def client(count: int) -> None:
            for _ in range(count):
                statuses[await send(up, rng)] += 1

        await asyncio.gather(*(client(_REQUESTS // _AT_ONCE + 1) for _ in range(_AT_ONCE)))
        _, after = await up.get("/metrics")
        assert series(after) == series(before)
        assert len(after) < _MOST_BYTES
        assert set(statuses) == {200, 404}
        others = await up.metric("kvring_model_requests_total", model="other")
        assert others > _REQUESTS / 3
