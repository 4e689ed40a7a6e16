"""A fleet of pods, as an API server tells of them, behind a real router: ready, draining, replaced, gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.router.fleet.sources.api_server import NAMESPACE, SERVICE, api_server, endpoint, endpoint_slice
from tests.router.scripted import ScriptedReplica, rig, until


def _slice(replica: ScriptedReplica, uid: str, **conditions: Any) -> dict[str, Any]:
    port = int(replica.url.rsplit(":", 1)[1])
    ports = [{"name": "http", "port": port, "protocol": "TCP"}]
    return endpoint_slice(replica.name, endpoint("127.0.0.1", uid, replica.name, **conditions), ports=ports)


async def test_a_router_follows_the_pods_of_a_service(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t0ken")
    pods = [ScriptedReplica(f"pod-{number}") for number in range(3)]
    for pod in pods:
        await pod.start()
    async with api_server() as api:
        for number, pod in enumerate(pods[:2]):
            api.put(_slice(pod, f"uid-{number}"))
        found = {
            "service": SERVICE,
            "namespace": NAMESPACE,
            "url": api.url,
            "token_file": str(tmp_path / "token"),
        }
        async with rig(0, fleet={"kubernetes": found}) as up:
            await up.ready(2)
            assert (await up.post())[0] == 200
            assert api.asked[0].authorization == "Bearer t0ken"
            # One joins.
            api.put(_slice(pods[2], "uid-2"))
            await up.ready(3)
            # One is told to go: it ends what it runs, and gets nothing new.
            api.put(_slice(pods[0], "uid-0", ready=False, serving=True, terminating=True))
            await up.ready(2)
            before = len(pods[0].bodies)
            for _ in range(20):
                assert (await up.post())[0] == 200
            assert len(pods[0].bodies) == before
            assert await up.metric("kvring_fleet_replicas", state="draining") == 1
            api.delete("pod-0")
            await until(lambda: len(up.router.fleet.replicas) == 2)
            # A deletion that no watch told of: the list tells.
            api.lose("pod-1")
            api.version += 1
            api.forget()
            api.cut()
            await until(lambda: len(up.router.fleet.replicas) == 1)
            assert (await up.post())[2].headers["x-kvring-replica"] == "pod-2"
            assert await up.metric("kvring_discovery_up", source="kubernetes") == 1
            # Another pod has got the address.
            (first,) = up.router.fleet.replicas
            api.put(_slice(pods[2], "uid-9"))
            await until(lambda: up.router.fleet.replicas[0] is not first)
            await up.ready(1)
    for pod in pods:
        await pod.stop()
