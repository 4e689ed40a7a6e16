"""A worker's line to its supervisor, over a real socket pair."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from router.wire.errors import ApiError
from router.workers import link as link_module
from router.workers.link import Link
from router.workers.message import About, Inbox, Kind, Message, framed
from tests.router.scripted import until


class _Answers:
    def snapshot(self) -> bytes:
        return b"metrics"

    def explained(self, request_id: str) -> bytes:
        return request_id.encode() if request_id == "known" else b""


class _Line:
    """A link, the orders that came, and the supervisor's end."""

    def __init__(self) -> None:
        self.end, its = socket.socketpair()
        self.end.setblocking(False)
        self.link = Link(its)
        self.orders: list[Kind] = []
        self._inbox = Inbox()
        self._read: list[Message] = []

    async def next(self) -> Message:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(10):
            while not self._read:
                piece = await loop.sock_recv(self.end, 65_536)
                assert piece
                self._read = self._inbox.feed(piece)
        return self._read.pop(0)

    async def send(self, *messages: Message) -> None:
        for message in messages:
            await asyncio.get_running_loop().sock_sendall(self.end, framed(message))


@pytest.fixture
async def line() -> AsyncIterator[_Line]:
    made = _Line()
    await made.link.open(made.orders.append)
    yield made
    made.end.close()
    await made.link.close()


async def test_it_answers_from_when_it_serves(line: _Line) -> None:
    await line.send(Message(Kind.ASK, 1, About.SNAPSHOT))
    assert await line.next() == Message(Kind.ANSWER, 1)
    line.link.serve(_Answers(), "here I am")
    assert await line.next() == Message(Kind.STARTED, body=b"here I am")
    assert await line.next() == Message(Kind.SNAPSHOT, body=b"metrics")
    await line.send(
        Message(Kind.ASK, 2, About.SNAPSHOT),
        Message(Kind.ASK, 3, About.EXPLANATION, b"known"),
        Message(Kind.ASK, 4, About.EXPLANATION, b"unknown"),
    )
    answers = [await line.next() for _ in range(3)]
    assert [(one.number, one.body) for one in answers] == [(2, b"metrics"), (3, b"known"), (4, b"")]


async def test_what_it_counted_last_is_told_before_it_hangs_up(line: _Line) -> None:
    line.link.serve(_Answers(), "")
    await asyncio.gather(line.next(), line.next())
    await line.link.close()
    assert await line.next() == Message(Kind.SNAPSHOT, body=b"metrics")
    assert await asyncio.get_running_loop().sock_recv(line.end, 1) == b""
    # To hang up oneself is no order to end.
    assert line.orders == []


async def test_it_asks_and_gets_each_answer(line: _Line) -> None:
    first = asyncio.create_task(line.link.ask(About.METRICS))
    second = asyncio.create_task(line.link.ask(About.EXPLANATION, b"x"))
    asked = [await line.next(), await line.next()]
    assert [(one.about, one.body) for one in asked] == [(About.METRICS, b""), (About.EXPLANATION, b"x")]
    await line.send(
        Message(Kind.ANSWER, asked[1].number, body=b"b"), Message(Kind.ANSWER, asked[0].number, body=b"a")
    )
    assert (await first, await second) == (b"a", b"b")


async def test_orders_are_handed_on(line: _Line) -> None:
    await line.send(Message(Kind.RELOAD), Message(Kind.DRAIN), Message(Kind.INSIST))
    await until(lambda: line.orders == [Kind.RELOAD, Kind.DRAIN, Kind.INSIST])


async def test_a_supervisor_that_goes_takes_its_worker_along(line: _Line) -> None:
    asking = asyncio.create_task(line.link.ask(About.METRICS))
    await line.next()
    line.end.close()
    with pytest.raises(ApiError) as caught:
        await asking
    assert caught.value.status == 503
    await until(lambda: line.orders == [Kind.INSIST])
    with pytest.raises(ApiError):
        await line.link.ask(About.METRICS)


async def test_a_supervisor_that_does_not_make_sense_is_as_good_as_gone(line: _Line) -> None:
    await asyncio.get_running_loop().sock_sendall(line.end, b"\xff" * 8)
    await until(lambda: line.orders == [Kind.INSIST])


async def test_a_silent_supervisor_is_not_waited_for(line: _Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "_ASK_SECONDS", 0.05)
    with pytest.raises(ApiError) as caught:
        await line.link.ask(About.METRICS)
    assert caught.value.code == "supervisor_silent"


async def test_one_that_does_not_read_gets_no_more_snapshots(
    line: _Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "_SNAPSHOT_SECONDS", 0.0)

    class Large(_Answers):
        made = 0

        def snapshot(self) -> bytes:
            self.made += 1
            return bytes(300_000)

    answers = Large()
    line.link.serve(answers, "")
    for _ in range(20):
        await asyncio.sleep(0.01)
    assert 1 <= answers.made <= 3
