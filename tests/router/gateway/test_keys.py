"""API keys at the gateway: who has none is told so, replicas never see one, and changed keys count soon."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from router.gateway.keyring import key_line
from tests.router.scripted import BODY, rig, until

_KEY = "kvr_of-mine"


def _bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def test_only_who_has_a_key_is_served_and_replicas_never_see_it(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(key_line(_KEY, "mine") + "\n")
    async with rig(1, auth={"keys_file": str(keys)}) as up:
        for headers in ({}, _bearer("kvr_of-another"), {"Authorization": _KEY}, {"x-api-key": "?"}):
            status, body, _ = await up.post(headers=headers)
            assert status == 401
            error = json.loads(body)["error"]
            assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
            assert (await up.session.get(f"{up.router.address}/v1/models", headers=headers)).status == 401
        assert not up.replicas[0].bodies
        assert (await up.post(headers=_bearer(_KEY)))[0] == 200
        assert (await up.post(headers={"x-api-key": _KEY}))[0] == 200
        for request in up.replicas[0].requests:
            assert not {"authorization", "x-api-key"} & {name.lower() for name in request.headers}


@pytest.mark.parametrize("control", [{}, {"port": 0}])
async def test_on_the_port_of_the_api_only_probes_need_no_key(
    tmp_path: Path, control: dict[str, int]
) -> None:
    keys = tmp_path / "keys"
    keys.write_text(key_line(_KEY, "mine") + "\n")
    async with rig(1, auth={"keys_file": str(keys)}, control=control, observe={"explain": True}) as up:

        async def status(url: str, path: str, headers: dict[str, str] | None = None) -> int:
            async with up.session.get(url + path, headers=headers) as response:
                return response.status

        api, here = up.router.address, up.router.control_address
        assert (here == api) is (not control)
        for path in ("/", "/metrics", "/debug/fleet", "/debug/decisions", "/nothing"):
            assert await status(api, path) == 401
            there = here == api and path != "/nothing"
            assert await status(api, path, _bearer(_KEY)) == (200 if there else 404)
        async with up.session.post(f"{api}/debug/explain", json=BODY) as response:
            assert response.status == 401
        assert [await status(api, path) for path in ("/healthz", "/readyz")] == [200, 200]
        if here != api:
            assert [await status(here, path) for path in ("/", "/metrics", "/readyz")] == [200] * 3


async def test_who_has_no_key_is_told_before_its_body_is_sent(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(key_line(_KEY, "mine") + "\n")
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 20000000\r\n%b\r\n"
    expecting = b"Expect: 100-continue\r\n"
    async with rig(1, auth={"keys_file": str(keys)}) as up:
        for sent, told in (
            (b"", b"HTTP/1.1 401 "),
            (expecting, b"HTTP/1.1 401 "),
            (expecting + b"Authorization: Bearer " + _KEY.encode() + b"\r\n", b"HTTP/1.1 100 "),
        ):
            reader, writer = await asyncio.open_connection(*up.router.address[7:].split(":"))
            writer.write(head % sent)
            assert (await asyncio.wait_for(reader.readline(), 5)).startswith(told)
            writer.close()
        async with up.session.get(f"{up.router.address}/metrics", headers=_bearer(_KEY)) as response:
            assert 'kvring_refusals_total{status="401"} 2.0' in await response.text()


async def test_without_keys_of_ours_a_clients_key_is_the_replicas() -> None:
    async with rig(1) as up:
        assert (await up.post(headers=_bearer("the-replica's")))[0] == 200
        assert up.replicas[0].requests[0].headers["Authorization"] == "Bearer the-replica's"


async def test_changed_keys_count_soon_and_a_bad_file_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = tmp_path / "keys"
    keys.write_text(key_line(_KEY, "mine") + "\n")
    async with rig(1, auth={"keys_file": str(keys)}, reload_seconds=0.05) as up:
        keyring = up.router.core.serving.keyring
        keys.write_text(key_line("kvr_new", "mine") + "\n" + key_line("kvr_second", "yours") + "\n")
        await until(lambda: len(keyring) == 2)
        assert (await up.post(headers=_bearer(_KEY)))[0] == 401
        assert (await up.post(headers=_bearer("kvr_new")))[0] == 200
        keys.write_text("no keys at all\n")
        await until(lambda: "refused" in caplog.text)
        assert (await up.post(headers=_bearer("kvr_new")))[0] == 200
