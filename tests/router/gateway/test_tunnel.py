"""The tunnel to the control plane keeps no sockets of requests that end while it is built."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Iterator

import pytest

from router.gateway.tunnel import Tunnel
from router.http.headers import Headers
from router.http.reply import Reply
from router.http.request import Request
from tests.router.oracle.loops import LOOPS


class _Nowhere:
    """The connection of a client that gets nothing."""

    paused = False

    def write(self, data: bytes) -> None:
        raise AssertionError

    def break_off(self) -> None:
        raise AssertionError


@pytest.fixture(params=LOOPS)
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=LOOPS[request.param]) as made:
        yield made


def _carry(tunnel: Tunnel) -> asyncio.Task[None]:
    request = Request("GET", b"/metrics", Headers(), None)
    return asyncio.create_task(tunnel.carry(request, "id", Reply(_Nowhere(), True, False, False)))


def _files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_request_cancelled_at_any_step_leaves_no_socket(runner: asyncio.Runner) -> None:
    runner.run(_cancelled())


async def _cancelled() -> None:
    tunnel = Tunnel(asyncio.Protocol)
    before = 0
    for attempt in range(16):
        # The first ones are for what a loop opens once.
        before = before if attempt >= 8 else _files()
        task = _carry(tunnel)
        for _ in range(attempt % 8):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0.02)
    assert _files() == before
    # A socket that was left to the collector says so.
    gc.collect()


def test_a_control_plane_that_serves_nobody_leaves_no_socket(runner: asyncio.Runner) -> None:
    runner.run(_unserved())


async def _unserved() -> None:
    def nobody() -> asyncio.BaseProtocol:
        raise LookupError

    with pytest.raises(LookupError):
        await _carry(Tunnel(nobody))
    gc.collect()
