"""With the real model: kill -9 at random token positions, and the client sees what it would have seen.

CONTINUATION_DEATHS=100 has a hundred die, one after the other, rather than ten.
"""

from __future__ import annotations

import os
from pathlib import Path
from random import Random
from typing import Any

import pytest

from replica.model.bundled import bundled_model_directory
from tests.integration.dying import dying_fleet

DEATHS = int(os.environ.get("CONTINUATION_DEATHS", "10"))
ANSWER = 14
QUESTIONS = (
    "What is the capital of France, and what is it known for?",
    "Write one sentence about the sea.",
    "Why is the sky blue?",
)


@pytest.mark.model
@pytest.mark.timeout(120 + 10 * DEATHS)
async def test_greedy_answers_survive_their_replicas(tmp_path: Path) -> None:
    options = {
        "model_directory": str(bundled_model_directory()),
        # Rounding in bf16 would depend on who computed what together.
        "torch": {"dtype": "fp32", "block_count": 64},
        # Told, so that no start measures it.
        "prefill": {"base_seconds": 0.01, "per_token_seconds": 1e-3, "per_token_context_seconds": 0},
    }
    bodies: list[dict[str, Any]] = [
        {"messages": [{"role": "user", "content": question}], "max_tokens": ANSWER, "temperature": 0}
        for question in QUESTIONS
    ]
    random = Random(DEATHS)
    async with dying_fleet(tmp_path, options, 3) as fleet:
        undisturbed = [await fleet.stream(body) for body in bodies]
        assert len({whole.text for whole in undisturbed}) == len(bodies)
        for death in range(DEATHS):
            body, whole = bodies[death % len(bodies)], undisturbed[death % len(bodies)]
            seen = await fleet.killed_at(random.randrange(len(whole.text) * 3 // 4), body)
            assert seen.whole() == whole.whole(), death
            fleet.born(seen.replica)
            # Who takes the next one, and who goes on with it.
            await fleet.ready(2)
        # On a machine that stands still for a while, an answer may have come already.
        assert fleet.metric("continued") >= DEATHS * 0.8
