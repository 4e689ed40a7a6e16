"""Who a replica is: by uid and epoch, so that nothing is inherited by another at its address."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from router.fleet.health import Standing
from router.fleet.members import Member
from router.fleet.replica import State
from tests.router.fleet.listed import Listed
from tests.router.scripted import BODY, Rig, ScriptedReplica, rig, until


@asynccontextmanager
async def _fleet(
    monkeypatch: pytest.MonkeyPatch, source: Listed, *replicas: ScriptedReplica, **fleet: float
) -> AsyncIterator[Rig]:
    for replica in replicas:
        await replica.start()
    monkeypatch.setattr("router.gateway.core.member_sources", lambda *_: [source])
    async with rig(0, fleet=fleet) as up:
        yield up
    for replica in replicas:
        await replica.stop()


async def test_a_restarted_process_inherits_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(request: web.Request) -> web.StreamResponse:
        return web.json_response({}, status=500)

    async with rig(2) as up:
        scripted = up.replica("r0")
        member = next(one for one in up.router.fleet.replicas if one.name == "r0")
        scripted.answer = fails
        scripted.work_seconds = 3.0
        # Its breaker opens, for longer than a probe takes.
        await until(lambda: member.load.work_seconds == 3.0)
        for _ in range(20):
            member.health.answer_failed(up.router.fleet._clock())
        assert member.health.standing is Standing.SUSPECT
        before = member.epoch
        scripted.uid, scripted.answer, scripted.work_seconds = "r0-2", None, 0.0
        await until(lambda: member.usable)
        assert member.epoch != before
        assert member.load.view(0.0).work_seconds == 0.0
        view = up.router.fleet.view("m", 0.0)
        assert member.epoch in view.epochs
        assert before not in view.epochs


async def test_an_address_that_another_pod_has_got_is_another_replica(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replica = ScriptedReplica("at-address")
    source = Listed()
    async with _fleet(monkeypatch, source, replica) as up:
        source.listed = [Member(replica.url, "pod-a", "uid-a")]
        await up.ready(1)
        (first,) = up.router.fleet.replicas
        first.computed(1000, 0, 5.0)
        lease = first.load.open(1.0, 0.0)
        source.listed = [Member(replica.url, "pod-b", "uid-b")]
        await until(lambda: up.router.fleet.by_name("pod-b") is not None)
        await up.ready(1)
        (second,) = up.router.fleet.replicas
        assert second is not first
        assert second.load.in_flight == 0
        assert second.prefill_reading().observations == 0
        first.load.close(lease)
        # The same pod under a changed name or label stays who it is.
        source.listed = [Member(replica.url, "pod-b", "uid-b", draining=True)]
        await up.ready(0)
        assert up.router.fleet.replicas == [second]
        assert second.stands(0.0) is State.DRAINING


async def test_a_pod_with_two_addresses_is_one_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    replica, other = ScriptedReplica("dual"), ScriptedReplica("other")
    source = Listed()
    async with _fleet(monkeypatch, source, replica, other) as up:
        again = replica.url.replace("127.0.0.1", "localhost")
        source.listed = [Member(replica.url), Member(again), Member(other.url)]
        await until(lambda: all(one.state for one in up.router.fleet.replicas))
        await up.ready(2)
        view = up.router.fleet.view("m", 0.0)
        assert sorted(view.names) == ["dual", "other"]
        assert view.members == 2
        # The address that is used goes: the other takes its place.
        used = next(one.url for one in up.router.fleet.replicas if one.name == "dual")
        left = again if used == replica.url else replica.url
        source.listed = [Member(left), Member(other.url)]
        await until(lambda: len(up.router.fleet.replicas) == 2)
        await up.ready(2)
        assert sorted(up.router.fleet.view("m", 0.0).names) == ["dual", "other"]


async def test_states_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    ready, draining, loading = (ScriptedReplica(name) for name in ("a", "b", "c"))
    draining.draining, loading.state_status = True, 503
    source = Listed()
    async with _fleet(monkeypatch, source, ready, draining, loading) as up:
        source.listed = [Member(one.url, one.name) for one in (ready, draining, loading)]
        await up.ready(1)
        await until(lambda: up.router.fleet.by_name("b").health.standing is Standing.DRAINING)  # type: ignore[union-attr]
        for state, count in (("ready", 1), ("draining", 1), ("joining", 1), ("down", 0), ("warming", 0)):
            assert await up.metric("kvring_fleet_replicas", state=state) == count


async def test_a_model_is_never_answered_by_what_took_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    replica = ScriptedReplica("r")
    source = Listed()
    async with _fleet(monkeypatch, source, replica) as up:
        source.listed = [Member(replica.url)]
        await up.ready(1)
        assert (await up.post())[0] == 200
        replica.uid, replica.models = "r-2", ("another",)
        await until(lambda: up.router.fleet.models() == ["another"])
        assert (await up.post())[0] == 404
        assert (await up.post({**BODY, "model": "another"}))[0] == 200


async def test_a_new_replica_gets_its_share_bit_by_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = asyncio.Event()

    async def held(request: web.Request) -> web.StreamResponse:
        await gate.wait()
        return web.json_response({})

    old = [ScriptedReplica(f"old-{number}") for number in range(2)]
    new = ScriptedReplica("new")
    new.serving_seconds = 0.0
    source = Listed()
    async with _fleet(monkeypatch, source, *old, new, warming_seconds=1000) as up:
        for one in (*old, new):
            one.answer = held
        source.listed = [Member(one.url) for one in old]
        await up.ready(2)
        source.listed = [Member(one.url) for one in (*old, new)]
        await up.ready(3)
        assert await up.metric("kvring_fleet_replicas", state="warming") == 1
        bodies = [{**BODY, "messages": [{"role": "user", "content": f"{n} " * 99}]} for n in range(30)]
        asked = [asyncio.create_task(up.post(body)) for body in bodies]
        await until(lambda: sum(one.running for one in (*old, new)) == 30)
        # Its queue is the shortest by far, and yet it has one request at a time.
        assert new.running == 1
        gate.set()
        await asyncio.gather(*asked)
