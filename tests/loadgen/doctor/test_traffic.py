"""What came of routing: hits, predictions, layouts, salts, and how load is shared out."""

from __future__ import annotations

from typing import Any

import pytest

from loadgen.doctor.checks.ring import busiest_of
from loadgen.doctor.evidence import Evidence
from loadgen.doctor.finding import Verdict
from router.observe.layout.report import LayoutReport
from tests.integration.fleets import live_fleet
from tests.loadgen.doctor.patient import (
    NOTE,
    WARNING,
    WRONG,
    diagnose,
    look,
    routed,
    router,
    severities,
    verdict,
)


def turns(prompt: int, hit: int, **causes: int) -> str:
    lines = [
        f'kvring_turn_prompt_tokens_total{{model="m",turn="2"}} {prompt}',
        f'kvring_turn_hit_tokens_total{{model="m",turn="2"}} {hit}',
        *(f'kvring_uncached_tokens_total{{replica="r0",cause="{cause}"}} {n}' for cause, n in causes.items()),
    ]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("prompt", "hit", "found"),
    [(100_000, 80_000, []), (100_000, 10_000, [WARNING]), (100_000, 100, [WRONG]), (1_000, 0, None)],
)
def test_later_turns(prompt: int, hit: int, found: list[str] | None) -> None:
    told = look(Evidence(router=router(metrics=turns(prompt, hit, evicted=9, cold=1))), "hits")
    assert told.looked is (found is not None)
    assert severities(told) == (found or [])
    # The largest cause says what to do.
    assert all("evicted (90%)" in finding.seen and "larger KV" in finding.mend for finding in told.findings)


@pytest.mark.parametrize(
    ("expected", "hit", "unreported", "found"),
    [
        (80_000, 75_000, 0, []),
        (80_000, 40_000, 0, [WARNING]),
        (80_000, 0, 0, [WRONG]),
        # Where answers do not tell, nothing is known of hits.
        (80_000, 0, 100, None),
    ],
)
def test_what_was_expected_and_was_not_there(
    expected: int, hit: int, unreported: int, found: list[str] | None
) -> None:
    metrics = f"""
        kvring_requests_total{{replica="r0",outcome="ok"}} 100
        kvring_prompt_tokens_total{{replica="r0"}} 100000
        kvring_expected_hit_tokens_total{{replica="r0"}} {expected}
        kvring_hit_tokens_total{{replica="r0"}} {hit}
        kvring_hit_unreported_total{{replica="r0"}} {unreported}
    """
    told = look(Evidence(router=router(metrics=metrics)), "predictions")
    assert told.looked is (found is not None)
    assert severities(told) == (found or [])


@pytest.mark.parametrize(("lost", "found"), [(1_000, []), (40_000, [WARNING])])
def test_salts(lost: int, found: list[str]) -> None:
    metrics = f"""
        kvring_prompt_tokens_total{{replica="r0"}} 100000
        kvring_uncached_tokens_total{{replica="r0",cause="key_mismatch"}} {lost}
    """
    assert severities(look(Evidence(router=router(metrics=metrics)), "salts")) == found


def layout_of(**row: Any) -> Verdict:
    told = {
        "layout": 0,
        "cause": "date",
        "detail": "",
        "kind": "messages",
        "role": "system",
        "index": 0,
        "character": 12,
        "character_ratio": 1.0,
        "at_tokens": 4.0,
        "requests": 900.0,
        "lost_tokens": 30_000.0,
        "lost_ratio": 0.3,
        **row,
    }
    report = LayoutReport.from_json(
        {
            "requests": 1000.0,
            "layouts": 1,
            "prompt_tokens": 100_000.0,
            "hit_tokens": 50_000.0,
            "lost_tokens": 30_000.0,
            "findings": [told],
        }
    )
    return look(Evidence(router=router(layout=report)), "layout")


def test_prompts_that_part_in_their_first_block() -> None:
    found = layout_of().findings
    assert [finding.severity for finding in found] == [WRONG]
    assert "first block: a date or a time" in found[0].title
    assert severities(layout_of(at_tokens=400.0)) == [WARNING]
    assert not layout_of(lost_ratio=0.001).findings
    assert not layout_of(cause="compaction", at_tokens=400.0).findings


async def test_live_prompts_that_part_in_their_first_block() -> None:
    """Ten words that change, and all the rest the same: through a router that looks at every prompt."""
    observe = {"access_log": False, "explain": True, "layout": {"sample_share": 1.0}}
    rest = "Answer in short sentences and never speak of the weather. " * 20

    async def examine(head: str) -> Verdict:
        async with live_fleet(1, observe=observe) as fleet:
            for number in range(60):
                system = head.format(number=number) + rest
                await fleet.chat(
                    [
                        {"role": "system", "content": system},
                        {"role": "user", "content": f"Question {number}?"},
                    ]
                )
            return verdict(await diagnose(url=fleet.routers[0].address), "layout")

    changing = await examine("Request {number:04} at noon. ")
    assert changing.looked
    assert severities(changing) == [WRONG]
    steady = await examine("Requests come at noon. ")
    assert steady.looked
    assert not steady.findings


def test_layouts_that_are_not_told() -> None:
    told = look(Evidence(router=router(why_no_layout="observe.explain is off")), "layout")
    assert (told.looked, told.seen) == (False, "observe.explain is off")


def test_rings_that_are_even_and_one_that_is_not() -> None:
    for count in (2, 3, 16, 64, 256):
        even = router(*(routed(f"replica-{index}") for index in range(count)))
        assert not look(Evidence(router=even), "ring").findings
    # Found by trying: the names fall together by chance.
    names = [f"gpu-158-{index}" for index in range(12)]
    assert busiest_of(names)[1] > 1.3
    found = look(Evidence(router=router(*map(routed, names))), "ring")
    assert severities(found) == [WARNING]
    assert busiest_of(names)[0] in found.findings[0].title
    assert severities(look(Evidence(router=router(routed("r0"))), "ring")) == [NOTE]


@pytest.mark.parametrize(("busiest", "found"), [(40_000, []), (90_000, [WARNING])])
def test_what_replicas_computed(busiest: int, found: list[str]) -> None:
    metrics = "\n".join(
        f'kvring_uncached_tokens_total{{replica="r{index}",cause="cold"}} {busiest if index == 1 else 30_000}'
        for index in range(3)
    )
    seen = router(*(routed(f"r{index}") for index in range(3)), metrics=metrics)
    told = look(Evidence(router=seen), "load")
    assert severities(told) == found
    assert all("r1" in finding.title for finding in told.findings)
