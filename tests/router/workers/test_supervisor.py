"""Several workers as one router: killed, reloaded, drained, and refused where options are unfit."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from loadgen.children import start_child, stop_children
from tests.router.scripted import BODY, ScriptedReplica, chunk, until
from tests.router.workers.killing import kill_workers
from tests.router.workers.running import Running, alive, children_of, open_files, running, until_it

_STREAM = {**BODY, "stream": True}
_QUICK = ("limits.drain_notice_seconds=0.2", "fleet.state_poll_seconds=0.05")
_CHAT = "/v1/chat/completions"


async def _ask(up: Running) -> dict[str, str]:
    async with up.session.post(up.url + _CHAT, json=BODY) as response:
        assert response.status == 200
        await response.read()
        return dict(response.headers)


async def _held_by(up: Running, replica: ScriptedReplica, count: int) -> list[asyncio.Task[bytes]]:
    """Begin as many streams; return when all have reached the replica."""

    async def one() -> bytes:
        async with up.session.post(up.url + _CHAT, json=_STREAM) as response:
            return await response.read()

    tasks = [asyncio.create_task(one()) for _ in range(count)]
    await until(lambda: replica.running == count)
    return tasks


def _gate(replica: ScriptedReplica) -> asyncio.Event:
    """Let streams of a replica begin, and end once the event is set."""
    gate = asyncio.Event()

    async def slow(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(chunk("first"))
        await gate.wait()
        await response.write(chunk(None, "stop") + b"data: [DONE]\n\n")
        return response

    replica.answer = slow
    return gate


async def test_counts_never_go_back_whoever_is_killed(replica: ScriptedReplica, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    environment = {"TMPDIR": str(scratch)}
    async with running(replica, tmp_path, 4, *_QUICK, environment=environment) as up:
        files = open_files(up.supervisor)
        watched = await kill_workers(up, 4, kills=10, pause_seconds=0.25)
        assert not watched.went_back
        assert watched.scrapes > 10
        counts, gauges = await up.scrape()
        assert gauges["kvring_in_flight_requests", ()] == 0
        assert gauges["kvring_replica_in_flight_requests", (("replica", "r0"),)] == 0
        assert counts["kvring_worker_restarts_total", ()] == 10
        served = counts["kvring_requests_total", (("outcome", "ok"), ("replica", "r0"))]
        assert 0 < served <= len(replica.bodies)
        # No file anywhere, and no line to a worker that is no more.
        assert not os.listdir(scratch)
        assert open_files(up.supervisor) == files


async def test_in_flight_is_the_truth_of_the_living(replica: ScriptedReplica, tmp_path: Path) -> None:
    gate = _gate(replica)
    async with running(replica, tmp_path, 2, *_QUICK) as up:
        tasks = await _held_by(up, replica, 24)
        assert await up.gauge("kvring_in_flight_requests") == 24
        before = len(up.workers())
        os.kill(up.workers()[0], signal.SIGKILL)
        await until(lambda: len(up.workers()) < before or "is started again" in up.log())
        await until(lambda: replica.running < 24)

        async def true() -> bool:
            return await up.gauge("kvring_in_flight_requests") == replica.running

        await until_it(true)
        assert 0 < replica.running < 24
        gate.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        await until_it(true)
        assert replica.running == 0


async def test_streams_end_well_also_where_every_process_is_signalled(
    replica: ScriptedReplica, tmp_path: Path
) -> None:
    gate = _gate(replica)
    async with running(replica, tmp_path, 2, *_QUICK) as up:
        tasks = await _held_by(up, replica, 20)
        # As some service managers do: the supervisor says it once more, which is not to insist.
        for pid in (up.supervisor, *up.workers()):
            os.kill(pid, signal.SIGTERM)

        async def unready() -> bool:
            return {await up.status("/readyz") for _ in range(8)} == {503}

        async with asyncio.timeout(10):
            while not all([await unready() for _ in range(8)]):
                pass
        assert up.child.process.poll() is None
        gate.set()
        for answer in await asyncio.gather(*tasks):
            assert answer.endswith(b"data: [DONE]\n\n")
        assert await up.exit_code() == 0
        assert "started again" not in up.log()


async def test_a_second_signal_ends_all_at_once(replica: ScriptedReplica, tmp_path: Path) -> None:
    _gate(replica)
    async with running(replica, tmp_path, 2) as up:
        tasks = await _held_by(up, replica, 8)
        os.kill(up.supervisor, signal.SIGTERM)
        await until(lambda: up.log().count("draining") == 3)
        os.kill(up.supervisor, signal.SIGINT)
        assert await up.exit_code() == 0
        for end in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(end, aiohttp.ClientPayloadError)


async def test_workers_that_do_not_drain_are_told_to_end_and_then_killed() -> None:
    script = [sys.executable, "-m", "tests.router.workers.wedged"]
    process = await asyncio.create_subprocess_exec(*script, stdout=PIPE, stderr=PIPE)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(20):
            for _ in range(2):
                assert b"is there" in await process.stdout.readline()
            # One that takes no orders, and one that does nothing at all.
            os.kill(children_of(process.pid)[0], signal.SIGSTOP)
            process.terminate()
            _, log = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 1
    assert log.count(b"draining takes too long") == 1
    assert log.count(b"does not end, and is killed") == 2


async def test_workers_end_with_their_supervisor(replica: ScriptedReplica, tmp_path: Path) -> None:
    _gate(replica)
    async with running(replica, tmp_path, 2) as up:
        workers = up.workers()
        tasks = await _held_by(up, replica, 8)
        os.kill(up.supervisor, signal.SIGKILL)
        await until(lambda: not any(alive(pid) for pid in workers))
        for end in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(end, aiohttp.ClientPayloadError)


async def test_a_reload_reaches_all_and_those_that_come_later(
    replica: ScriptedReplica, tmp_path: Path
) -> None:
    config = tmp_path / "kvring.toml"
    config.write_text('reload_seconds = 0\n[policy]\nname = "least_requests"\n')
    async with running(replica, tmp_path, 2, *_QUICK, config=config) as up:
        assert (await _ask(up))["x-kvring-policy"] == "least_requests"
        config.write_text('reload_seconds = 0\n[policy]\nname = "round_robin"\n')

        async def taken(times: int) -> bool:
            counts, _ = await up.scrape()
            return counts.get(("kvring_config_reloads_total", (("result", "taken"),)), 0) == times

        os.kill(up.supervisor, signal.SIGHUP)
        await until_it(lambda: taken(2))
        assert {(await _ask(up))["x-kvring-policy"] for _ in range(12)} == {"round_robin"}
        # One that is started again takes up what the others have.
        os.kill(up.workers()[0], signal.SIGKILL)
        await until(lambda: "is started again" in up.log())
        await until_it(lambda: taken(3))
        assert {(await _ask(up))["x-kvring-policy"] for _ in range(12)} == {"round_robin"}


async def test_any_worker_explains_what_another_served(replica: ScriptedReplica, tmp_path: Path) -> None:
    settings = ("observe.explain=true", "control.port=0")
    async with running(replica, tmp_path, 3, *_QUICK, *settings) as up:
        assert up.control != up.url
        for index in range(4):
            headers = {"x-request-id": f"find-{index}"}
            async with up.session.post(up.url + _CHAT, json=BODY, headers=headers) as response:
                assert response.status == 200
        for index in range(4):
            for _ in range(4):
                async with up.session.get(f"{up.control}/debug/explain/find-{index}") as response:
                    assert response.status == 200
                    assert (await response.json())["outcome"]["request_id"] == f"find-{index}"
        async with up.session.get(f"{up.control}/debug/explain/nobody") as response:
            assert response.status == 404
        async with up.session.get(f"{up.control}/debug/fleet") as response:
            told = json.loads(await response.read())
        assert told["totals"]["requests"] == 4
        assert told["router"]["worker"]["count"] == 3


@pytest.mark.parametrize("count", [1, 3])
async def test_unfit_options_are_told_once(tmp_path: Path, count: int) -> None:
    config = tmp_path / "kvring.toml"
    config.write_text('[policy]\nname = "affinity"\n[policy.options]\nno_such = 1\n')
    arguments = ["router", "--config", str(config), "--listen", "127.0.0.1:0", "--workers", str(count)]
    child = start_child("router", arguments, tmp_path, {})
    await until(lambda: child.process.poll() is not None, limit_seconds=30)
    assert child.process.returncode == 2
    assert child.log.read_text().count("no_such") == 1
    assert len(child.log.read_text().splitlines()) == 1


async def test_a_port_that_others_share_is_not_shared_unawares(
    replica: ScriptedReplica, tmp_path: Path
) -> None:
    async with running(replica, tmp_path, 2, *_QUICK) as up:
        address = up.url.removeprefix("http://")
        child = start_child("second", ["router", "--listen", address, "--workers", "2"], tmp_path, {})
        try:
            await until(lambda: child.process.poll() is not None, limit_seconds=30)
            assert child.process.returncode == 1
            assert "in use" in child.tail()
        finally:
            await stop_children([child], 2.0)
