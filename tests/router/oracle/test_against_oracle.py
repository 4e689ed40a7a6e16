"""The router against its oracle: the same bytes reach the replica, and the same come back.

Whatever is left out of the comparison here is in the table of differences, each with its reason.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.router.oracle.loops import LOOPS, running
from tests.router.oracle.pair import Call, Pair, call, pair
from tests.router.oracle.raw_replica import Script
from tests.router.oracle.scenes import Scene, scenes
from tests.router.oracle.wire import Message

# How a message is framed, and what each server says of itself.
_FRAME = ("content-length", "transfer-encoding", "connection", "date", "server", "host", "x-request-id")
# aiohttp makes headers of trailers where they come in time; the router passes none on.
_TRAILER = "x-trailer"
_EXAMPLES = settings(
    deadline=None,
    max_examples=60,
    # Another try of sockets is seldom quite the same: what failed is told as it was.
    phases=[Phase.generate],
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

Place = tuple[asyncio.Runner, Pair]


@pytest.fixture(scope="module", params=LOOPS)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Both before one replica, on each event loop."""
    with running(request.param, pair) as made:
        yield made


@_EXAMPLES
@given(scene=scenes())
def test_both_send_and_answer_alike(place: Place, scene: Scene) -> None:
    runner, both = place
    runner.run(_compare(both, scene))


async def _compare(both: Pair, scene: Scene) -> None:
    sent, answers = await _ours(both, scene.call, scene.scripts)
    sent_then, answers_then = await _theirs(both, scene.call, scene.scripts)
    for (first, fields, body), (first_then, fields_then, body_then) in zip(sent, sent_then, strict=False):
        assert (first, body) == (first_then, body_then)
        assert (fields - fields_then, fields_then - fields) == (Counter(), Counter())
    assert len(sent) == len(sent_then)
    assert len(answers) == len(answers_then)
    for index, (answer, then) in enumerate(zip(answers, answers_then, strict=True)):
        _hold(answer, then, scene.scripts[str(index)])


def _hold(answer: Message, then: Message, script: Script) -> None:
    """Fail where an answer is another than it would have been."""
    if script.end == "reset":
        # What was under way when it came may be lost, and with it all that was sent.
        refused = answer.status == then.status and b'{"error"' in answer.body
        assert refused or not answer.whole or b"[DONE]" in answer.body or answer.status == 502, answer
        return
    assert answer.status == then.status
    told, told_then = answer.told(*_FRAME), then.told(*_FRAME, _TRAILER)
    assert (told - told_then, told_then - told) == (Counter(), Counter())
    if script.whole or then.whole:
        assert (_read(answer.body), answer.whole) == (_read(then.body), then.whole)
    else:
        # aiohttp forgets what it has read and not handed over when a connection breaks.
        assert answer.body.startswith(then.body.partition(b'data: {"error"')[0])


def _read(body: bytes) -> Any:
    """Errors in words of their own are alike if they say the same to a program."""
    if body.startswith(b'{"error"'):
        error = json.loads(body)["error"]
        return error["type"], error["code"], error["param"]
    return body


@_EXAMPLES
@given(scene=scenes(leaves=True))
def test_a_client_that_leaves_leaves_nothing(place: Place, scene: Scene) -> None:
    runner, both = place
    runner.run(_leave(both, scene))


async def _leave(both: Pair, scene: Scene) -> None:
    """Whatever reaches the replica of a client that leaves is whole, and in turn; then all is closed."""
    assert scene.call.stop is not None
    stayed = Call(scene.call.requests)
    fine = dict.fromkeys(scene.scripts, Script(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"))
    all_sent, _ = await _theirs(both, stayed, fine)
    sent, _ = await _ours(both, scene.call, scene.scripts)
    assert sent == all_sent[: len(sent)]
    whole, size = 0, 0
    for head, body in scene.call.requests:
        size += len(head) + len(body)
        whole += size <= scene.call.stop
    assert len(sent) <= whole


Sent = list[tuple[tuple[str, ...], Counter[tuple[str, str]], bytes]]


async def _ours(both: Pair, one: Call, scripts: dict[str, Script]) -> tuple[Sent, list[Message]]:
    both.replica.scripts = scripts
    answers = await call(both.router.address, one)
    await both.idle()
    return _take(both), answers


async def _theirs(both: Pair, one: Call, scripts: dict[str, Script]) -> tuple[Sent, list[Message]]:
    both.replica.scripts = scripts
    answers = await call(both.oracle.address, one)
    await both.idle()
    return _take(both), answers


def _take(both: Pair) -> Sent:
    """Return what the replica got since the last time: what came again over a new connection, once."""
    got, both.replica.got = both.replica.got, []
    sent: Sent = []
    for message in got:
        assert message.whole
        assert "9" not in message.of("x-case")
        one = (tuple(message.first), message.told(*_FRAME, _TRAILER), message.body)
        if not sent or sent[-1] != one:
            sent.append(one)
    return sent
