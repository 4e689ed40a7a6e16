"""The lint of live traffic: its sample, its bounds, and that no text is kept."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from itertools import count
from threading import Event, Thread
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from router.config import LayoutOptions
from router.observe.layout.metrics import LayoutMetrics
from router.observe.layout.report import LayoutReport
from router.observe.layout.watch import LayoutWatch
from tests.router.observe.layout.prompts import body, chat, conversation, prose, system


class AtOnce(Executor):
    """Does what it is given then and there."""

    def submit(self, do: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(do(*args, **kwargs))
        return future


class Watched:
    """A watch that looks at once, which takes no time unless a clock says so."""

    def __init__(self, clock: Callable[[], float] = lambda: 0.0, **options: Any) -> None:
        self.watch = LayoutWatch(LayoutOptions(**options), clock)

    def see(self, request: Mapping[str, Any], size_bytes: int, prompt_tokens: int) -> bool:
        return self.watch.see(request, size_bytes, prompt_tokens, AtOnce())

    def report(self) -> LayoutReport:
        return self.watch.report()


def watch(**options: Any) -> Watched:
    return Watched(**options)


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


def test_looks_take_no_more_of_a_core_than_their_share_of_requests() -> None:
    """What is left out meanwhile is stood for by what is looked at next."""
    # Each time that somebody reads the clock a second has passed: a look takes one, so a rest takes four.
    seen = Watched(count().__next__, sample_share=0.2)
    total = 12_000
    looked = [seen.see(body(chat(1, f"c{number}")), 1000, 10) for number in range(total)]
    assert 0 < sum(looked) < 0.2 * total / 3
    assert seen.watch.skipped > 2 * sum(looked)
    assert seen.report().requests == pytest.approx(total, rel=0.15)


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
    seen.see({"model": "m", "prompt": [1, 2, 3]}, 100, 10)
    assert (seen.watch.skipped, seen.report().requests) == (2, 1)


def test_while_one_is_looked_at_others_go_on_unseen() -> None:
    """Not one of them waits, nor is more than one kept for later."""
    seen = LayoutWatch(LayoutOptions(sample_share=1))
    free = Event()
    with ThreadPoolExecutor(1) as threads:
        threads.submit(free.wait)
        taken = [seen.see(body(chat(1, f"c{number}")), 1000, 10, threads) for number in range(50)]
        kept, seen_by_then = threads._work_queue.qsize(), seen.report().requests
        free.set()
    assert taken == [True] + [False] * 49
    assert (seen.skipped, seen_by_then, kept) == (49, 0, 1)
    assert seen.report().requests == 1


def test_closed_threads_are_no_error() -> None:
    seen = LayoutWatch(LayoutOptions(sample_share=1))
    threads = ThreadPoolExecutor(1)
    threads.shutdown()
    assert not seen.see(body(chat(1)), 1000, 10, threads)
    assert seen.see(body(chat(1)), 1000, 10, AtOnce())


def test_what_fails_is_counted_and_named_without_text(caplog: pytest.LogCaptureFixture) -> None:
    deep: Any = "secret"
    for _ in range(5000):
        deep = [deep]
    seen = watch(sample_share=1)
    seen.see({"messages": [{"role": "user", "content": deep}]}, 1000, 10)
    assert (seen.watch.skipped, seen.report().requests) == (1, 0)
    assert "RecursionError" in caplog.text
    assert "secret" not in caplog.text
    assert seen.see(body(chat(1)), 1000, 10)
    assert seen.report().requests == 1


def test_metrics() -> None:
    seen = watch(sample_share=1, body_bytes=2048)
    registry = CollectorRegistry()
    registry.register(LayoutMetrics(seen.watch))
    for request in dated(4):
        seen.see(request, 1000, 500)
    seen.see(body(chat(1)), 4096, 10)
    told = dict(line.split(" ") for line in generate_latest(registry).decode().split("\n") if line[:1] == "k")
    assert (told["kvring_layout_requests"], told["kvring_layout_prompt_tokens"]) == ("4.0", "2000.0")
    assert float(told['kvring_layout_lost_tokens{cause="date"}']) == seen.report().lost_tokens > 0
    assert told['kvring_layout_lost_tokens{cause="tool_order"}'] == "0.0"
    assert told["kvring_layout_skipped_total"] == "1.0"
    assert float(told["kvring_layout_memory_bytes"]) == seen.watch.held_bytes > 0


def test_a_report_comes_back_from_json() -> None:
    seen = watch(sample_share=1)
    salted = body([system(prose("rules", 20)), *chat(1)], cache_salt="a")
    for request in (*dated(5), salted, {**salted, "cache_salt": "b"}):
        seen.see(request, 1000, 500)
    report = seen.report()
    assert {row.kind for row in report.rows} == {"messages", "keys"}
    back = LayoutReport.from_json(json.loads(json.dumps(report.to_json())))
    for told, first in zip(back.to_json()["findings"], report.to_json()["findings"], strict=True):
        # A quotient of what was rounded.
        assert told.pop("lost_tokens_per_request") == pytest.approx(
            first.pop("lost_tokens_per_request"), abs=1
        )
        assert told == first
    for one, other in zip(back.rows, report.rows, strict=True):
        assert (one.where, one.role, one.cause, one.accepted) == (
            *(other.where, other.role, other.cause, other.accepted),
        )


def test_memory_is_bounded() -> None:
    seen = watch(sample_share=1, memory_bytes=200_000)
    for number in range(300):
        seen.see(body([system(prose(f"rules{number}", 10)), *chat(2, f"c{number}")]), 1000, 300)
        assert seen.watch.held_bytes <= 200_000
    assert seen.report().requests == 300


def test_no_text_is_kept() -> None:
    """Neither of messages nor of what else may be any text: salts, and roles."""
    seen = watch(sample_share=1)
    for turn in range(4):
        odd = {"role": "Hushhush", "content": f"It is 12:0{turn}. " + prose("more", 20)}
        messages = [system(f"Hushhush {turn}.\n" + prose("rules", 20)), odd, *chat(turn + 1)]
        seen.see(body(messages, cache_salt=f"Hushhush {turn // 2}"), 1000, 500)
    roles = {row.role for row in seen.report().rows}
    assert roles >= {"system", "other"}
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
    seen = LayoutWatch(LayoutOptions(sample_share=1, memory_bytes=300_000))
    bodies = [dated(6, f"T{number} ") for number in range(4)]

    def send(requests: list[dict[str, Any]]) -> None:
        for request in requests * 10:
            seen.see(request, 1000, 400, threads)

    with ThreadPoolExecutor(2) as threads:
        senders = [Thread(target=send, args=(mine,)) for mine in bodies]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
    report = seen.report()
    assert report.requests + seen.skipped == 240
    assert report.prompt_tokens == 400 * report.requests > 0
    assert report.hit_tokens + report.lost_tokens + report.fresh_tokens == pytest.approx(report.prompt_tokens)
    assert seen.held_bytes <= 300_000


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
