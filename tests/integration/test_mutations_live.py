"""The same mutated bodies as the gateway's own test, this time answered by a real replica behind it."""

from __future__ import annotations

import random
from pathlib import Path

from tests.integration.fleets import live_fleet
from tests.router.gateway.test_mutations import mutated
from tests.tiny_tokenizer import write_tiny_tokenizer


async def test_no_mutation_is_a_server_error_on_a_replica(tmp_path: Path) -> None:
    directory = write_tiny_tokenizer(tmp_path / "model")
    draw = random.Random(7)
    seen: dict[int, int] = {}
    limits = {"default_answer_tokens": 8}
    async with live_fleet(1, directory, replica={"limits": limits}) as fleet:
        for _ in range(800):
            path, raw = mutated(draw)
            async with fleet.session.post(f"{fleet.routers[0].address}{path}", data=raw) as response:
                answer = await response.read()
            assert response.status == 200 or 400 <= response.status < 500, (response.status, raw, answer)
            seen[response.status] = seen.get(response.status, 0) + 1
        assert fleet.routers[0].fleet.replicas[0].usable
        async with fleet.session.get(f"{fleet.replicas[0].url}/state") as response:
            state = await response.json()
    assert (state["load"]["running"], state["load"]["waiting"]) == (0, 0)
    assert state["free_blocks"] == state["block_count"]
    assert min(seen[200], seen[400]) > 50, seen
