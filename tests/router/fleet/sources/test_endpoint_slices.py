"""Members by Kubernetes, against a scripted API server: how pods come, drain and go."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from router.fleet.members import Member
from tests.router.fleet.sources.api_server import api_server, endpoint, endpoint_slice
from tests.router.fleet.sources.following import following

ONE, TWO, THREE = (f"http://10.0.0.{number}:8000" for number in (1, 2, 3))


async def test_pods_are_listed_then_watched(tmp_path: Path) -> None:
    async with api_server() as server:
        server.put_two_pods()
        version = server.version
        async with following(server.source(tmp_path, watch_seconds=300)) as followed:
            await followed.until_urls(ONE, TWO)
            await server.watched()
            server.put(endpoint_slice("c", endpoint("10.0.0.3", "u3", "r3")))
            await followed.until_urls(ONE, TWO, THREE)
            server.delete("a")
            await followed.until_urls(TWO, THREE)
        assert followed.members == (Member(TWO, "r2", "u2"), Member(THREE, "r3", "u3"))
    listing, watching = server.asked
    selector = {"labelSelector": "kubernetes.io/service-name=replicas"}
    assert listing.path == "/apis/discovery.k8s.io/v1/namespaces/models/endpointslices"
    assert (listing.verb, listing.query) == ("list", selector)
    assert (watching.verb, watching.query) == (
        "watch",
        {
            **selector,
            "watch": "1",
            "resourceVersion": str(version),
            "allowWatchBookmarks": "true",
            "timeoutSeconds": "300",
        },
    )
    assert {asked.authorization for asked in server.asked} == {"Bearer first"}


async def test_events_come_in_pieces_and_several_at_once(tmp_path: Path) -> None:
    async with api_server() as server:
        server.put_two_pods()
        async with following(server.source(tmp_path)) as followed:
            await followed.until_urls(ONE, TWO)
            await server.watched()
            events = [
                {"type": "DELETED", "object": endpoint_slice("a")},
                {"type": "ADDED", "object": endpoint_slice("c", endpoint("10.0.0.3", "u3"))},
            ]
            raw = b"\r\n\n".join(json.dumps(event).encode() for event in events) + b"\n"
            for cut in (raw[:1], raw[1:50], raw[50:]):
                server.send(cut)
            await followed.until_urls(TWO, THREE)


async def test_unknown_events_are_ignored(tmp_path: Path) -> None:
    async with api_server() as server:
        server.put_two_pods()
        async with following(server.source(tmp_path)) as followed:
            await followed.until_urls(ONE, TWO)
            await server.watched()
            server.send(b'{"type":"PAUSED","object":{"metadata":{"name":"a","resourceVersion":"5"}}}\n{}\n')
            server.send(b'{"type":["DELETED"],"object":null}\n{"type":"DELETED","object":[]}\n')
            server.delete("b")
            await followed.until_urls(ONE)
        assert server.count("watch") == 1


async def test_a_pod_is_ready_then_draining_then_gone(tmp_path: Path) -> None:
    async with api_server() as server:
        server.put(
            endpoint_slice("a", endpoint("10.0.0.1", "u1", ready=False, serving=False, terminating=False))
        )
        async with following(server.source(tmp_path)) as followed:
            await followed.until(lambda members: members == ())
            await server.watched()
            server.put(endpoint_slice("a", endpoint("10.0.0.1", "u1", serving=True, terminating=False)))
            await followed.until(lambda members: members == (Member(ONE, None, "u1"),))
            server.put(
                endpoint_slice("a", endpoint("10.0.0.1", "u1", ready=False, serving=True, terminating=True))
            )
            await followed.until(lambda members: members == (Member(ONE, None, "u1", draining=True),))
            server.put(
                endpoint_slice("a", endpoint("10.0.0.1", "u1", ready=False, serving=False, terminating=True))
            )
            await followed.until(lambda members: members == ())
        assert len(followed.lists) == 4


async def test_an_evicted_pod_is_gone_though_its_slice_stays(tmp_path: Path) -> None:
    async with api_server() as server:
        server.put_two_pods()
        async with following(server.source(tmp_path)) as followed:
            await followed.until_urls(ONE, TWO)
            await server.watched()
            server.put(endpoint_slice("b", endpoint(None, "u2", "r2")))
            await followed.until_urls(ONE)


async def test_another_pod_at_the_same_address_is_told(tmp_path: Path) -> None:
    async with api_server() as server:
        server.put(endpoint_slice("a", endpoint("10.0.0.1", "u1", "r0")))
        async with following(server.source(tmp_path)) as followed:
            await followed.until_urls(ONE)
            await server.watched()
            server.put(endpoint_slice("a", endpoint("10.0.0.1", "u2", "r0")))
            await followed.until(lambda members: members[0].uid == "u2")


async def test_what_changes_no_member_is_not_told(tmp_path: Path) -> None:
    async with api_server() as server:
        server.put_two_pods()
        async with following(server.source(tmp_path)) as followed:
            await followed.until_urls(ONE, TWO)
            await server.watched()
            server.put(endpoint_slice("a", {**endpoint("10.0.0.1", "u1", "r1"), "zone": "z"}))
            server.put(endpoint_slice("c", endpoint("10.0.0.2", "u2", "r2")))
            server.delete("b")
            server.delete("a")
            await followed.until_urls(TWO)
        assert [len(listed) for listed in followed.lists] == [2, 1]


async def test_a_slice_of_a_thousand_pods_comes_in_one_line(tmp_path: Path) -> None:
    pods = [
        {
            **endpoint(f"10.1.{number // 250}.{number % 250}", f"u{number}", f"replica-{number}"),
            "nodeName": "node-" + "x" * 200,
            "zone": "zone-" + "y" * 200,
        }
        for number in range(1000)
    ]
    async with api_server() as server:
        server.put(endpoint_slice("a"))
        async with following(server.source(tmp_path)) as followed:
            await followed.until(lambda members: members == ())
            await server.watched()
            server.put(endpoint_slice("a", *pods))
            await followed.until(lambda members: len(members) == 1000)
        assert server.count("watch") == 1


async def test_a_port_that_is_not_there_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with api_server() as server:
        server.put_two_pods()
        async with following(server.source(tmp_path, port="grpc")) as followed:
            await followed.until(lambda members: members == ())
            await server.watched()
            server.put(endpoint_slice("c", endpoint("10.0.0.3", "u3")))
            server.put(endpoint_slice("d", endpoint("10.0.0.4", "u4"), ports=[{"name": "grpc", "port": 1}]))
            await followed.until_urls("http://10.0.0.4:1")
    assert len(caplog.messages) == 1
    assert "'grpc'" in caplog.messages[0]
