"""The hub: what several workers tell becomes one answer, also where some are slow, new or dead."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from router.observe.merge import families, registry_of, replicas, snapshot
from router.workers.ended import Ended
from router.workers.hub import Hub
from router.workers.message import About, Kind, Message


class _Rig:
    """A hub, a clock that is set, and what was sent."""

    def __init__(self, *workers: int) -> None:
        self.now = 0.0
        self.sent: list[tuple[int, Message]] = []
        self.hub = Hub(lambda worker, message: self.sent.append((worker, message)), lambda: self.now)
        for worker in workers:
            self.hub.started(worker)

    def take_sent(self) -> list[tuple[int, Message]]:
        sent, self.sent = self.sent, []
        return sent

    def ask(self, worker: int, about: About = About.FAMILIES, number: int = 1, body: bytes = b"") -> None:
        self.hub.take(worker, Message(Kind.ASK, number, about, body))

    def answer(self, asked: list[tuple[int, Message]], **told: bytes) -> None:
        """Answer questions that were sent; `told` by worker, as w1."""
        for worker, message in asked:
            if f"w{worker}" in told:
                self.hub.take(worker, Message(Kind.ANSWER, message.number, body=told[f"w{worker}"]))


def _told(count: float, held: float = 0, replica: str = "r0") -> bytes:
    registry = CollectorRegistry()
    Counter("kvring_requests", "R.", ("replica",), registry=registry).labels(replica).inc(count)
    Gauge("kvring_in_flight_requests", "H.", registry=registry).set(held)
    return snapshot(registry)


def _read(raw: bytes) -> tuple[float | None, ...]:
    read = registry_of(raw).get_sample_value
    return (
        read("kvring_requests_total", {"replica": "r0"}),
        read("kvring_in_flight_requests"),
        read("kvring_workers"),
        read("kvring_worker_restarts_total"),
    )


def test_a_scrape_asks_all_and_answers_their_sum() -> None:
    rig = _Rig(1, 2)
    rig.ask(2, number=7)
    asked = rig.take_sent()
    assert [(worker, message.about) for worker, message in asked] == [
        (1, About.SNAPSHOT),
        (2, About.SNAPSHOT),
    ]
    rig.answer(asked, w1=_told(3, 1))
    assert not rig.sent
    rig.answer(asked, w2=_told(4, 2))
    ((worker, message),) = rig.take_sent()
    assert (worker, message.kind, message.number) == (2, Kind.ANSWER, 7)
    assert _read(message.body) == (7, 3, 2, 0)
    assert rig.hub.due is None


def test_metrics_are_text() -> None:
    rig = _Rig(1)
    rig.ask(1, About.METRICS)
    rig.answer(rig.take_sent(), w1=_told(3, 1))
    ((_, message),) = rig.take_sent()
    assert b'\nkvring_requests_total{replica="r0"} 3.0\n' in message.body


def test_who_asks_meanwhile_gets_the_next_sum() -> None:
    rig = _Rig(1)
    rig.ask(1, number=1)
    first = rig.take_sent()
    rig.ask(1, number=2)
    rig.ask(1, number=3)
    assert not rig.sent
    rig.answer(first, w1=_told(1))
    sent = rig.take_sent()
    assert [message.kind for _, message in sent] == [Kind.ANSWER, Kind.ASK]
    rig.answer(sent[1:], w1=_told(2))
    later = rig.take_sent()
    assert [(message.number, _read(message.body)[0]) for _, message in later] == [(2, 2), (3, 2)]


def test_one_that_does_not_answer_is_told_of_by_what_it_told_last() -> None:
    rig = _Rig(1, 2)
    rig.hub.take(1, Message(Kind.SNAPSHOT, body=_told(5, 1)))
    rig.ask(2)
    rig.answer(rig.take_sent(), w2=_told(1))
    rig.hub.expire()
    assert not rig.sent
    due = rig.hub.due
    assert due is not None
    rig.now = due
    rig.hub.expire()
    ((_, message),) = rig.take_sent()
    assert _read(message.body) == (6, 1, 2, 0)


def test_counts_of_the_dead_stay_and_their_gauges_go() -> None:
    rig = _Rig(1, 2)
    for number in range(3):
        rig.hub.take(1, Message(Kind.SNAPSHOT, body=_told(10, 4)))
        rig.hub.gone(1)
        # Late words of one that is no more would count twice.
        rig.hub.take(1, Message(Kind.SNAPSHOT, body=_told(10, 4)))
        rig.hub.restarted()
        rig.ask(2)
        rig.answer(rig.take_sent(), w2=_told(1, 1))
        ((_, message),) = rig.take_sent()
        assert _read(message.body) == (10 * (number + 1) + 1, 1, 1, number + 1)
        rig.hub.started(1)


def test_who_dies_while_it_is_waited_for_is_not_waited_for() -> None:
    rig = _Rig(1, 2, 3)
    rig.ask(2, number=1)
    rig.ask(3, number=2)
    asked = rig.take_sent()
    rig.answer(asked, w2=_told(1), w3=_told(1))
    rig.hub.gone(1)
    sent = rig.take_sent()
    assert (sent[0][0], _read(sent[0][1].body)[0]) == (2, 2)
    # The next round, for the third, has begun.
    rig.hub.gone(3)
    rig.answer(sent[1:], w2=_told(1))
    assert all(worker != 1 for worker, _ in sent)


def test_whoever_knows_a_request_explains_it() -> None:
    rig = _Rig(1, 2, 3)
    rig.ask(1, About.EXPLANATION, 9, b"find-me")
    asked = rig.take_sent()
    assert [(worker, message.body) for worker, message in asked] == [(2, b"find-me"), (3, b"find-me")]
    rig.answer(asked, w2=b"")
    assert not rig.sent
    rig.answer(asked, w3=b"{}")
    assert rig.take_sent() == [(1, Message(Kind.ANSWER, 9, body=b"{}"))]


def test_what_nobody_knows_is_answered_too() -> None:
    rig = _Rig(1)
    rig.ask(1, About.EXPLANATION, 9, b"x")
    assert rig.take_sent() == [(1, Message(Kind.ANSWER, 9))]
    rig = _Rig(1, 2)
    rig.ask(1, About.EXPLANATION, 9, b"x")
    rig.answer(rig.take_sent(), w2=b"")
    assert rig.take_sent() == [(1, Message(Kind.ANSWER, 9))]


def test_replicas_that_left_are_forgotten_after_a_while() -> None:
    ended = Ended()
    ended.add(families(_told(5, replica="old")))
    ended.add(families(_told(7, replica="r0")))
    living = [families(_told(1, replica="r0"))]
    ended.forget_departed(living, 0.0)
    ended.forget_departed(living, 900.0)
    assert replicas(ended.families) == {"old", "r0"}
    ended.forget_departed(living, 901.0)
    assert replicas(ended.families) == {"r0"}
