"""What a replica tells of itself is read whole, or refused."""

from __future__ import annotations

from typing import Any

import pytest

from router.chain.chain import ChainIdentity
from router.wire.report import LoadReport, PrefillCost, ReplicaState

STATE = ReplicaState(
    name="replica-1",
    uid="one",
    cache_epoch=0,
    models=("m",),
    chain=ChainIdentity("tokens", "xxh3", 16, "root"),
    load=LoadReport(0.5, 1, 2, 0.25, 7),
    prefill=PrefillCost(),
    context_tokens=4096,
    block_count=100,
    free_blocks=0,
)


def test_a_state_reads_back_as_what_it_is() -> None:
    assert ReplicaState.from_json(STATE.to_json()) == STATE


@pytest.mark.parametrize(
    "change",
    [
        {"chain": {**STATE.to_json()["chain"], "block_tokens": 0}},
        {"chain": {**STATE.to_json()["chain"], "block_tokens": -16}},
        {"context_tokens": -1},
        {"block_count": -1},
        {"free_blocks": -1},
        {"free_blocks": "many"},
        {"block_count": float("inf")},
        {"name": ""},
        {"load": {}},
    ],
)
def test_what_cannot_be_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"state|report|invalid literal"):
        ReplicaState.from_json(STATE.to_json() | change)
