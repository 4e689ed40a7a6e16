"""The lint of live traffic: its sample, its bounds, and that no text is kept."""

from __future__ import annotations

import gc
from threading import Thread
from typing import Any

import pytest

from router.observe.layout.watch import LayoutOptions, LayoutWatch
from tests.router.observe.layout.prompts import body, chat, conversation, prose, system


def watch(**options: Any) -> LayoutWatch:
    return LayoutWatch(LayoutOptions(**options))


def dated(turns: int, name: str = "") -> list[dict[str, Any]]:
    return conversation(turns, lambda turn: [system(f"{name}It is 12:0{turn}.\n" + prose("rules", 20))])


def test_all_of_the_traffic() -> None:
    seen = watch(sample_share=1)
    for request in dated(5):
        assert seen.see(request, 1000, prompt_tokens=500)
    report = seen.report()
    assert (report.requests, report.prompt_tokens) == (5, 2500)
    (row,) = report.rows
    assert (row.where, row.role, row.character, row.requests) == ("messages[0]", "system", 6, 4)
    assert row.lost_tokens > 0.5 * 2000
    assert row.texts == ()


def test_off_costs_nothing() -> None:
    seen = watch(sample_share=0)
    assert not any(seen.see(request, 1000, 500) for request in dated(3))
    assert seen.report().requests == 0


def test_a_sample_has_its_share_and_stands_for_all() -> None:
    """Also of short and long conversations: each is weighed by its chance to be seen."""
    seen = watch(sample_share=0.2)
    total = tokens = sampled = 0
    for number in range(1500):
        for turn in range(1 + number % 6):
            request = body(chat(turn + 1, f"c{number}"))
            sampled += seen.see(request, 1000, prompt_tokens=100 * (turn + 1))
            total += 1
            tokens += 100 * (turn + 1)
    assert sampled <= 0.2 * total
    report = seen.report()
    assert report.requests == pytest.approx(total, rel=0.15)
    assert report.prompt_tokens == pytest.approx(tokens, rel=0.15)


def test_a_turn_and_the_next_are_sampled_together() -> None:
    """Even where a window takes the first messages away: else no break would ever be seen."""
    seen = watch(sample_share=0.1)
    pairs = together = 0
    for number in range(150):
        history = chat(20, f"c{number}")
        before = False
        for turn in range(10):
            now = seen.see(body(history[2 * turn : 2 * turn + 19]), 1000, 500)
            pairs += before
            together += before and now
            before = now
    assert together > 0.75 * pairs
    assert [row.cause for row in seen.report().rows] == ["sliding_window"]


def test_routers_sample_alike() -> None:
    requests = [body(chat(1, f"c{number}")) for number in range(300)]
    one, other = watch(sample_share=0.5), watch(sample_share=0.5)
    assert [one.see(r, 1000, 10) for r in requests] == [other.see(r, 1000, 10) for r in requests]


def test_what_is_too_large_is_counted_and_left_out() -> None:
    seen = watch(sample_share=1, body_bytes=2048)
    assert not seen.see(body(chat(1)), 2049, 10)
    assert seen.see(body(chat(1)), 2048, 10)
    assert not seen.see({"model": "m", "prompt": [1, 2, 3]}, 100, 10)
    assert seen.skipped == 2


def test_a_thread_that_must_not_stand_still_goes_on() -> None:
    seen = watch(sample_share=1)
    done: list[bool] = []
    with seen._lock:
        thread = Thread(target=lambda: done.append(seen.see(body(chat(1)), 1000, 10, wait=False)))
        thread.start()
        thread.join()
    assert (done, seen.skipped) == ([False], 1)
    assert seen.see(body(chat(1)), 1000, 10, wait=False)


def test_memory_is_bounded() -> None:
    seen = watch(sample_share=1, memory_bytes=200_000)
    for number in range(300):
        seen.see(body([system(prose(f"rules{number}", 10)), *chat(2, f"c{number}")]), 1000, 300)
        assert seen.held_bytes <= 200_000
    assert seen.report().requests == 300


def test_no_text_is_kept() -> None:
    seen = watch(sample_share=1)
    for turn in range(4):
        seen.see(body([system(f"Hushhush {turn}.\n" + prose("rules", 20)), *chat(turn + 1)]), 1000, 500)
    assert seen.report().rows
    strings = _strings_below(seen)
    assert strings
    assert not any("ushhush" in text or "river" in text for text in strings)


def _strings_below(root: object) -> set[str]:
    """Return all text that can be reached from an object, short of modules and classes."""
    found: set[str] = set()
    known: set[int] = set()
    left: list[Any] = [root]
    while left:
        one = left.pop()
        if id(one) in known or isinstance(one, type) or callable(one):
            continue
        known.add(id(one))
        if isinstance(one, str):
            found.add(one)
        left += gc.get_referents(one)
    return found


def test_many_threads_at_once() -> None:
    seen = watch(sample_share=1, memory_bytes=300_000)
    bodies = [dated(6, f"T{number} ") for number in range(4)]
    threads = [
        Thread(target=lambda mine=mine: [seen.see(request, 1000, 400) for _ in range(10) for request in mine])
        for mine in bodies
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    report = seen.report()
    assert (report.requests, report.prompt_tokens) == (240, 240 * 400)
    assert report.hit_tokens + report.lost_tokens + report.fresh_tokens == pytest.approx(report.prompt_tokens)


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"messages": None},
        {"messages": []},
        {"messages": [None]},
        {"messages": [{"role": "user"}]},
        {"messages": [{"role": 1, "content": "a"}]},
        {"messages": [{"role": "user", "content": 5}]},
        {"messages": [{"role": "user", "content": [5]}]},
        {"messages": [{"role": "user", "content": "x\ud83d"}]},
        {
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:..."}}]}
            ]
        },
        {"messages": [{"role": "user", "content": "a"}], "tools": {}},
        {"messages": [{"role": "user", "content": "a"}], "tools": [1]},
        {"messages": [{"role": "assistant", "tool_calls": "x"}]},
        {"prompt": ["a", "b"]},
        {"prompt": {"a": 1}},
        {"prompt": "\n\n\n\n"},
        {"system": [{"type": "text"}], "messages": [{"role": "user", "content": ""}]},
        {"system": 7, "messages": [{"role": "user", "content": ""}]},
        {"messages": [{"role": "user", "content": "a"}], "cache_salt": {"x": [1]}},
    ],
)
def test_nothing_that_a_client_sends_raises(odd: dict[str, Any]) -> None:
    seen = watch(sample_share=1)
    for _ in range(2):
        seen.see(odd, 100, 10)
    seen.report()
