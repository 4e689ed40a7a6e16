"""Prompts of a trace: they share as their ids say, and have its lengths."""

from __future__ import annotations

import pytest

from loadgen.replay.prompts import Prompts
from loadgen.traces.trace import Trace, TraceRequest
from router.chain.namer import ChainNamer
from router.chain.prompt import first_completion_prompt

REQUESTS = (
    TraceRequest(0, 32, 1, (1, 2)),
    TraceRequest(0, 40, 1, (1, 2, 3)),
    TraceRequest(0, 40, 1, (1, 2)),
    TraceRequest(0, 48, 1, (1, 4, 5)),
    TraceRequest(0, 40, 1, (1, 2, 3)),
    TraceRequest(0, 40, 1, (1, 2)),
)
TRACE = Trace("t", 16, REQUESTS)


def prompts(form: str) -> list[list[int] | str]:
    made = Prompts(TRACE, "text" if form == "text" else "tokens")
    return [made.of(request, number) for number, request in enumerate(REQUESTS)]


@pytest.mark.parametrize("form", ["tokens", "text"])
def test_equal_ids_make_equal_blocks(form: str) -> None:
    unit = 4 if form == "text" else 1
    made = prompts(form)
    assert [len(prompt) for prompt in made] == [request.prompt_tokens * unit for request in REQUESTS]
    first, second, unnamed, other, again, unnamed_again = made
    assert second[: 32 * unit] == first == unnamed[: 32 * unit]
    assert again == second
    # A rest without an id is its request's own.
    assert len({str(unnamed), str(unnamed_again), str(second)}) == 3
    assert other[: 16 * unit] == first[: 16 * unit]
    assert other[16 * unit : 32 * unit] != first[16 * unit :]


def test_prompts_are_the_same_in_another_process() -> None:
    made = Prompts(Trace("t", 2, [TraceRequest(0, 2, 1, (7,))]))
    assert made.of(TraceRequest(0, 2, 1, (7,)), 0) == [6660, 10652]
    text = Prompts(Trace("t", 2, [TraceRequest(0, 2, 1, (7,))]), "text")
    assert text.of(TraceRequest(0, 2, 1, (7,)), 0) == "way man "


def test_token_ids_stay_in_their_range() -> None:
    made = Prompts(Trace("t", 512, [TraceRequest(0, 512, 1, (7,))]), first_token_id=100, token_ids=3)
    assert set(made.of(TraceRequest(0, 512, 1, (7,)), 0)) == {100, 101, 102}


@pytest.mark.parametrize("form", ["tokens", "text"])
def test_the_router_names_their_blocks_alike(form: str) -> None:
    namer = ChainNamer("sha256", "kvring", 16, None)
    chains = [namer.chain(first_completion_prompt({"model": "m", "prompt": made})) for made in prompts(form)]
    names = [chain.names for chain in chains]
    assert names[0][:2] == names[1][:2] == names[2][:2]
    assert names[3][0] == names[0][0]
    assert names[3][1] != names[0][1]
    lengths = [chain.prompt_tokens for chain in chains]
    # A canonical text begins with its kind, five bytes.
    expected = [request.prompt_tokens + (form == "text") for request in REQUESTS]
    assert lengths == expected
