"""Hand-over from the router's side: replicas that do not drain yet, odd answers, and broken policies."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
from aiohttp import web

from tests.router.scripted import Rig, rig, until

_TOKENS = list(range(100, 164))


class _Leaving:
    """Answers of a replica that goes, and what it and its peer were asked."""

    def __init__(self, *answers: tuple[int, Any]) -> None:
        """`answers` to /handover are statuses and bodies, in turn; the last again and again."""
        self._answers = list(answers)
        self.asked = 0
        self.warmed: list[web.Request] = []
        self.bodies: list[bytes] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/prefill":
            self.bodies.append(await request.read())
            self.warmed.append(request)
            return web.json_response({"computed_tokens": len(_TOKENS)})
        self.asked += 1
        status, body = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(body, bytes):
            return web.Response(status=status, body=body)
        return web.json_response(body, status=status)


async def _drain(up: Rig, leaving: _Leaving) -> None:
    """Let the first replica drain, and return once the router has done with its hand-over."""
    for replica in up.replicas:
        replica.hand_over = leaving.answer
    up.replicas[0].draining = True
    handover = up.router.core._handover
    await until(lambda: leaving.asked > 0)
    await until(lambda: not handover._tasks)


def _lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= logging.WARNING and record.name in ("kvring.handover", "asyncio")
    ]


async def test_a_replica_that_does_not_drain_yet_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    stays = (409, {"error": {"code": "not_draining"}})
    given = {"prefixes": [{"tokens": _TOKENS, "salt": "s", "hits": 3}], "left": 0}
    leaving = _Leaving(stays, stays, (200, given))
    async with rig(2) as up:
        await _drain(up, leaving)
        assert leaving.asked == 3
        (request,) = leaving.warmed
        assert request.headers["Content-Type"] == "application/json"
        assert json.loads(leaving.bodies[0]) == {"tokens": _TOKENS, "salt": "s"}
        assert await up.metric("kvring_handover_prefixes_total", result="warmed") == 1
        assert await up.metric("kvring_handover_tokens_total") == len(_TOKENS)
    assert not _lines(caplog)


async def test_one_that_never_drains_is_asked_no_longer_than_the_hand_over_may_take(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with rig(2, fleet={"handover": {"seconds": 0.6}}) as up:
        leaving = _Leaving((409, {}))
        await _drain(up, leaving)
        assert 2 <= leaving.asked <= 3
    assert len(_lines(caplog)) == 1


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        {"prefixes": None},
        {"prefixes": [1]},
        {"prefixes": [{"salt": "s"}]},
        {"prefixes": [{"tokens": ["a", 2]}]},
        {"prefixes": [{"tokens": [True]}]},
        {"prefixes": [{"tokens": [-1]}]},
        {"prefixes": [{"tokens": [2**32]}]},
        {"prefixes": [{"tokens": _TOKENS, "salt": 5}]},
        b"[" * 100_000,
        b'{"prefixes": [{"tokens": [1], "salt": "\\ud800"}]}',
        b"",
    ],
)
async def test_an_odd_answer_costs_one_line(body: object, caplog: pytest.LogCaptureFixture) -> None:
    async with rig(2) as up:
        leaving = _Leaving((200, body))
        await _drain(up, leaving)
        assert not leaving.warmed
        (line,) = _lines(caplog)
        assert "hand-over of replica r0" in line
        assert (await up.post())[0] == 200


async def test_a_policy_that_fails_ends_it_with_one_line(caplog: pytest.LogCaptureFixture) -> None:
    prefixes = [{"tokens": [token + number for token in _TOKENS]} for number in range(20)]
    async with rig(2, policy={"name": "tests.integration.broken_policy"}) as up:
        leaving = _Leaving((200, {"prefixes": prefixes}))
        await _drain(up, leaving)
        assert _lines(caplog) == ["hand-over of replica r0 failed"]
        assert not [task for task in asyncio.all_tasks() if "_work" in repr(task.get_coro())]
