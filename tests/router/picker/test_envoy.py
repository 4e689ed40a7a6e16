"""The picker behind a real Envoy, configured as the shipped example is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.router.picker.envoy_config import Change, duplex
from tests.router.picker.rig import envoy_rig

BUFFERED: tuple[Change, ...] = ()
DUPLEX: tuple[Change, ...] = (duplex,)


def chat(topic: str, turns: int = 1) -> dict[str, object]:
    """A conversation of so many turns, long enough to have a prefix worth keeping."""
    messages = []
    for turn in range(turns):
        messages.append({"role": "user", "content": f"{topic}, part {turn}. " + f"Tell me of {topic}. " * 40})
        messages.append({"role": "assistant", "content": f"So much for {topic}, part {turn}."})
    return {"model": "m", "messages": messages[:-1]}


@pytest.mark.parametrize("edits", [BUFFERED, DUPLEX])
async def test_a_conversation_stays_and_others_spread(tmp_path: Path, edits: tuple[Change, ...]) -> None:
    async with envoy_rig(tmp_path, *edits) as (rig, front):
        homes = {}
        for topic in ("the sea", "mountains", "deserts", "cities", "rivers", "winds"):
            served = set()
            for turns in (1, 2, 3):
                status, body, response = await rig.post(front, chat(topic, turns))
                assert status == 200
                assert b"Salt water" in body
                served.add(response.headers["x-kvring-replica"])
                assert response.headers["x-kvring-tier"] == "bytes"
            assert len(served) == 1
            homes[topic] = served.pop()
        assert len(set(homes.values())) > 1
        assert sum(rig.served()) == 18
        await rig.idle()
        assert rig.in_flight() == 0
        assert rig.metric("kvring_requests_total", outcome="ok") == 18
