"""A router's life from signal to signal: one that starts survives them, and no fault leaves it half open."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator

import pytest

from router.app import Router
from router.config import RouterConfig
from router.lifetime import _serve
from tests.router.scripted import rig, until


@pytest.fixture(autouse=True)
def _survives() -> Iterator[None]:
    """Signals that nobody handles must not end the tests; a reload sets the level of this process's log."""
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGHUP, signal.SIGTERM)}
    level = logging.getLogger().level
    yield
    logging.getLogger().setLevel(level)
    for number, handler in before.items():
        signal.signal(number, handler)


def _config() -> RouterConfig:
    return RouterConfig.load(flags={"listen": {"port": 0}})


class _Signalled(Router):
    """Gets SIGHUP while it starts, and SIGTERM once it has been reloaded for it; then it fails to drain."""

    stopped = False

    async def start(self) -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        await super().start()

    def reload(self, config: RouterConfig) -> None:
        super().reload(config)
        os.kill(os.getpid(), signal.SIGTERM)

    async def drain(self) -> None:
        raise RuntimeError("cannot drain")

    async def stop(self) -> None:
        await super().stop()
        self.stopped = True


async def test_a_reload_is_taken_while_it_starts_and_a_fault_of_draining_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    built: list[_Signalled] = []

    def build(config: RouterConfig) -> _Signalled:
        built.append(_Signalled(config))
        return built[-1]

    await _serve(build, _config(), _config, None)
    assert built[0].stopped
    (fault,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert "draining failed" in fault.getMessage()
    assert "cannot drain" in str(fault.exc_info)


async def test_one_that_cannot_start_is_closed() -> None:
    class Unfit(_Signalled):
        async def start(self) -> None:
            raise OSError("no such port")

    built: list[Unfit] = []

    def build(config: RouterConfig) -> Unfit:
        built.append(Unfit(config))
        return built[-1]

    with pytest.raises(OSError, match="no such port"):
        await _serve(build, _config(), _config, None)
    assert built[0].stopped


async def test_a_part_that_cannot_be_closed_leaves_no_other_open() -> None:
    async with rig(1) as up:
        core = up.router.core

        async def fails() -> None:
            raise RuntimeError("cannot close")

        handover_stop, core._handover.stop = core._handover.stop, fails  # type: ignore[method-assign]
        with pytest.raises(RuntimeError, match="cannot close"):
            await up.router.stop()
        assert core._session.closed
        assert core.pool.cutting
        assert core.pool.busy == core.pool.idle == 0
        await until(lambda: all(task.done() for task in core.fleet._tasks))
        core._handover.stop = handover_stop  # type: ignore[method-assign]
