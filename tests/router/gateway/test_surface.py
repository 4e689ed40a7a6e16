"""The surface: bad input is answered in OpenAI's shape, headers are clean, and the router tells how it is."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import pytest
from aiohttp import web

from router.chain.namer import ChainNamer
from tests.router.scripted import BODY, completion, rig, until
from tests.tiny_tokenizer import write_tiny_tokenizer

_CHAT = "/v1/chat/completions"


def _nested(depth: int) -> bytes:
    return (
        b'{"model":"m","messages":[{"role":"user","content":"x"}],"x":' + b"[" * depth + b"]" * depth + b"}"
    )


def _error(raw: bytes) -> dict[str, Any]:
    body = json.loads(raw)
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert isinstance(body["error"]["message"], str)
    error: dict[str, Any] = body["error"]
    return error


@pytest.mark.parametrize(
    ("path", "raw", "status"),
    [
        (_CHAT, b"", 400),
        (_CHAT, b"{", 400),
        (_CHAT, b"[]", 400),
        (_CHAT, b'"text"', 400),
        (_CHAT, b"null", 400),
        (_CHAT, b"\xff\xfe", 400),
        (_CHAT, b"{}", 400),
        (_CHAT, b'{"model":"m"}', 400),
        (_CHAT, b'{"model":"m","messages":{}}', 400),
        (_CHAT, b'{"model":"m","messages":[]}', 400),
        (_CHAT, b'{"model":"m","messages":[1]}', 400),
        (_CHAT, b'{"model":7,"messages":[{"role":"user","content":"x"}]}', 400),
        (_CHAT, b'{"messages":[{"role":"user","content":"x"}]}', 400),
        (_CHAT, b'{"model":"m","messages":[{"role":"user","content":"x \\ud83d"}]}', 400),
        (_CHAT, b'{"model":"m \\ud83d","messages":[{"role":"user","content":"x"}]}', 400),
        (_CHAT, b'{"model":"m","cache_salt":"\\udc00","messages":[{"role":"user","content":"x"}]}', 400),
        (_CHAT, b'{"model":"m","temperature":NaN,"messages":[{"role":"user","content":"x"}]}', 400),
        (_CHAT, b'{"model":"m","x":' + b"9" * 5000 + b',"messages":[{"role":"user","content":"x"}]}', 400),
        (_CHAT, _nested(1_000), 400),
        (_CHAT, _nested(100_000), 400),
        (_CHAT, b'{"model":"nobody","messages":[{"role":"user","content":"x"}]}', 404),
        ("/v1/completions", b'{"model":"m","prompt":[]}', 400),
        ("/v1/completions", b'{"model":"m","prompt":""}', 400),
        ("/v1/nothing", b"{}", 404),
    ],
)
async def test_bad_input_is_a_4xx_and_reaches_no_replica(path: str, raw: bytes, status: int) -> None:
    async with rig(1) as up:
        answered, body, response = await up.post(raw, path)
        assert answered == status
        _error(body)
        assert response.content_type == "application/json"
        assert response.headers["x-request-id"]
        assert not up.replicas[0].bodies
        assert (await up.post())[0] == 200


async def test_nesting_within_the_limit_passes() -> None:
    async with rig(1) as up:
        assert (await up.post(_nested(90)))[0] == 200


async def test_a_wrong_method_is_405_in_openais_shape() -> None:
    async with rig(1) as up, up.session.get(up.router.address + _CHAT) as response:
        assert response.status == 405
        assert response.headers["Allow"] == "POST"
        _error(await response.read())


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_over_the_limit_is_refused_in_json(chunked: bool) -> None:
    async with rig(1, limits={"body_bytes": 100_000}) as up:
        large = {**BODY, "messages": [{"role": "user", "content": "x" * 200_000}]}
        raw = json.dumps(large).encode()

        async def pieces() -> Any:
            for start in range(0, len(raw), 10_000):
                yield raw[start : start + 10_000]

        url = up.router.address + _CHAT
        async with up.session.post(url, data=pieces() if chunked else raw) as response:
            assert response.status == 413
            assert _error(await response.read())["code"] == "request_too_large"
        assert not up.replicas[0].bodies


async def test_a_long_chat_passes_and_so_does_a_gzip_body() -> None:
    async with rig(1) as up:
        large = json.dumps({**BODY, "messages": [{"role": "user", "content": "word " * 1_000_000}]}).encode()
        assert (await up.post(large))[0] == 200
        assert up.replicas[0].bodies[-1] == large
        plain = json.dumps(BODY).encode()
        headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
        assert (await up.post(gzip.compress(plain), headers=headers))[0] == 200
        assert up.replicas[0].bodies[-1] == plain
        sent = up.replicas[0].requests[-1].headers
        assert "Content-Encoding" not in sent
        assert sent["Content-Length"] == str(len(plain))


async def test_a_small_body_that_inflates_without_end_is_refused() -> None:
    async with rig(1, limits={"body_bytes": 1_000_000}) as up:
        bomb = gzip.compress(b" " * 50_000_000)
        status, body, _ = await up.post(bomb, headers={"Content-Encoding": "gzip"})
        assert status == 413
        _error(body)


async def test_a_slow_body_is_cut_off() -> None:
    async with rig(1, limits={"body_seconds": 0.3}) as up:

        async def pieces() -> Any:
            yield b'{"model":'
            await asyncio.sleep(5)

        async with up.session.post(up.router.address + _CHAT, data=pieces()) as response:
            assert response.status == 408
            _error(await response.read())


async def test_headers_end_at_the_hop_they_are_for() -> None:
    async with rig(1) as up:

        async def answer(request: web.Request) -> web.Response:
            headers = {"Connection": "x-secret", "X-Secret": "1", "Keep-Alive": "timeout=5", "X-Shown": "1"}
            headers["x-kvring-replica"] = "forged"
            return web.json_response(completion(), headers=headers)

        up.replicas[0].answer = answer
        sent = {
            "Host": "public.example",
            "Connection": "X-Drop",
            "X-Drop": "1",
            "TE": "trailers",
            "Proxy-Authorization": "x",
            "Authorization": "Bearer key",
            "X-Kvring-Trace": "1",
            "X-Gateway-Destination-Endpoint": "10.0.0.1",
            "X-Data-Parallel-Rank": "3",
            "X_Data_Parallel_Rank": "3",
            "X_Forwarded_For": "192.0.2.9",
            "Transfer_Encoding": "chunked",
            "My_Own": "1",
            "X-Forwarded-For": "192.0.2.7",
            "X-Request-Id": "abc-123",
            "Traceparent": "00-1-2-01",
            "Content-Type": "application/json",
        }
        _, _, response = await up.post(headers=sent)
        got = up.replicas[0].requests[0].headers
        for name in ("X-Drop", "TE", "Proxy-Authorization", "X-Kvring-Trace"):
            assert name not in got
        for name in ("X-Gateway-Destination-Endpoint", "X-Data-Parallel-Rank"):
            assert name not in got
            assert name.replace("-", "_") not in got
        assert "X_Forwarded_For" not in got
        assert "Transfer_Encoding" not in got
        assert got["My_Own"] == "1"
        assert got["Host"] == up.replicas[0].url.removeprefix("http://")
        assert got["X-Forwarded-Host"] == "public.example"
        assert got["X-Forwarded-For"] == "192.0.2.7, 127.0.0.1"
        assert got["Authorization"] == "Bearer key"
        assert got["Traceparent"] == "00-1-2-01"
        assert got["X-Request-Id"] == response.headers["x-request-id"] == "abc-123"
        assert response.headers["x-kvring-replica"] == "r0"
        assert response.headers["X-Shown"] == "1"
        assert "X-Secret" not in response.headers
        assert "Keep-Alive" not in response.headers


async def test_a_request_id_unfit_for_logs_is_replaced() -> None:
    async with rig(1) as up:
        _, _, response = await up.post(headers={"X-Request-Id": "x" * 500})
        assert len(response.headers["x-request-id"]) == 32


async def test_environment_proxies_are_not_for_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    async with rig(1) as up:
        assert (await up.post())[0] == 200


async def test_liveness_and_readiness() -> None:
    async with rig(0) as up:
        assert (await up.get("/healthz"))[0] == 200
        status, body = await up.get("/readyz")
        assert (status, body["reason"]) == (503, "the fleet has no replica")
        status, raw, response = await up.post()
        assert (status, response.headers["Retry-After"]) == (503, "2")
        _error(raw)
    async with rig(2) as up:
        assert (await up.get("/readyz"))[0] == 200
        for replica in up.replicas:
            await replica.stop()
        await up.ready(0)
        status, body = await up.get("/readyz")
        assert (status, body["reason"]) == (
            503,
            "none of 2 replicas is usable, most of all since: nothing listens there",
        )
        assert (await up.get("/healthz"))[0] == 200
        assert (await up.post())[0] == 503


async def test_when_all_look_bad_readiness_says_what_routing_does() -> None:
    async with rig(2) as up:
        for replica in up.replicas:
            replica.state_status = 500
        await up.ready(0)
        assert (await up.get("/readyz"))[0] == 200
        assert (await up.post())[0] == 200


async def test_a_replica_that_says_not_yet_is_not_even_a_last_resort() -> None:
    async with rig(1) as up:
        up.replicas[0].state_status = 503
        await up.ready(0)
        assert (await up.get("/readyz"))[0] == 503
        status, _, response = await up.post()
        assert (status, response.headers["Retry-After"]) == (503, "2")
        assert not up.replicas[0].bodies


@pytest.mark.parametrize(
    "raw",
    [
        b"NOT HTTP\r\n\r\n",
        b"POST /v1/models HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nBad\x00Header: 2\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: " + b"x" * 40_000 + b"\r\n\r\n",
    ],
)
async def test_what_is_no_request_is_answered_in_json(raw: bytes) -> None:
    async with rig(1) as up:
        host, port = up.router.address.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(raw)
        answer = await asyncio.wait_for(reader.read(), 10)
        writer.close()
        await writer.wait_closed()
        head, _, body = answer.partition(b"\r\n\r\n")
        assert (b" 431 " if len(raw) > 40_000 else b" 400 ") in head.splitlines()[0]
        assert b"application/json" in head
        _error(body)
        assert not up.replicas[0].bodies


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br"])
async def test_a_body_that_is_not_what_its_encoding_says(
    encoding: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with rig(1) as up:
        status, body, _ = await up.post(b"not compressed at all", headers={"Content-Encoding": encoding})
        assert status == (415 if encoding == "br" else 400)
        _error(body)
    assert not [record for record in caplog.records if record.exc_info]


async def test_models_are_those_of_routable_replicas_and_a_dead_one_is_not_unknown() -> None:
    async with rig(2) as up:
        up.replicas[0].models = ("m", "only-r0")
        await until(lambda: "only-r0" in up.router.fleet.models())
        _, body = await up.get("/v1/models")
        assert [card["id"] for card in body["data"]] == ["m", "only-r0"]
        assert body["data"][0]["max_model_len"] == 8192
        _, _, response = await up.post({**BODY, "model": "only-r0"})
        assert response.headers["x-kvring-replica"] == "r0"
        await up.replicas[0].stop()
        await up.ready(1)
        status, raw, response = await up.post({**BODY, "model": "only-r0"})
        assert status == 503
        assert 1 <= int(response.headers["Retry-After"]) <= 30
        status, raw, _ = await up.post({**BODY, "model": "m9"})
        assert status == 404
        assert _error(raw)["code"] == "model_not_found"
        _, body = await up.get("/v1/models")
        assert [card["id"] for card in body["data"]] == ["m"]


async def test_made_up_models_and_paths_make_no_metrics() -> None:
    async with rig(1) as up:
        await up.post({**BODY, "model": "warm-up"})
        await up.post({}, "/v1/warm-up")
        before = len((await up.get("/metrics"))[1].splitlines())
        for number in range(200):
            await up.post({**BODY, "model": f"model-{number}"}, headers={"X-Session-Id": str(number)})
            await up.post({}, f"/v1/path-{number}")
        text = (await up.get("/metrics"))[1]
        assert len(text.splitlines()) <= before + 2
        assert len(text) < 200_000


async def test_too_many_requests_are_turned_away() -> None:
    async with rig(1, limits={"in_flight": 4}) as up:
        gate = asyncio.Event()

        async def wait(request: web.Request) -> web.Response:
            await gate.wait()
            return web.json_response(completion())

        up.replicas[0].answer = wait
        held = [asyncio.create_task(up.post()) for _ in range(4)]
        await until(lambda: up.replicas[0].running == 4)
        status, raw, response = await up.post()
        assert status == 503
        assert response.headers["Retry-After"] == "1"
        assert _error(raw)["type"] == "overloaded_error"
        gate.set()
        assert {status for status, _, _ in await asyncio.gather(*held)} == {200}


async def test_a_tokenizer_gives_the_token_tier_by_a_rule_on_the_request(tmp_path: Any) -> None:
    directory = write_tiny_tokenizer(tmp_path / "model")
    models = {"m": {"tokenizer_directory": str(directory)}}
    async with rig(1, models=models, limits={"tokenised_bytes": 20_000}) as up:
        _, _, response = await up.post()
        assert response.headers["x-kvring-tier"] == "tokens"
        picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
        for body in (
            {**BODY, "messages": [{"role": "user", "content": [picture]}]},
            {**BODY, "messages": [{"role": "nobody", "content": "x"}]},
            {**BODY, "messages": [{"role": "user", "content": "x" * 30_000}]},
        ):
            status, _, response = await up.post(body)
            assert (status, response.headers["x-kvring-tier"]) == (200, "bytes")
        assert await up.metric("kvring_prompts_total", tier="bytes") == 3


async def test_a_mismatch_of_names_is_loud_and_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async with rig(2) as up:
        up.replicas[0].identity = ChainNamer("sha256", "another seed", 16, None).identity
        await until(lambda: any(replica.mismatch for replica in up.router.fleet.replicas))
        assert await up.metric("kvring_replica_chain_mismatch", replica="r0") == 1
        assert await up.metric("kvring_replica_chain_mismatch", replica="r1") == 0
        (warning,) = [r.message for r in caplog.records if "names blocks otherwise" in r.message]
        assert "root_fingerprint" in warning
        assert (await up.get("/readyz"))[0] == 200
        served = {
            (await up.post({**BODY, "messages": [{"role": "user", "content": f"{n} " * 50}]}))[2].headers[
                "x-kvring-replica"
            ]
            for n in range(30)
        }
        assert served == {"r0", "r1"}


@pytest.mark.parametrize("session", ["", "x" * 10_000])
async def test_a_session_id_that_is_none_pins_nobody(session: str) -> None:
    async with rig(3, policy={"name": "session_ring"}) as up:
        served = set()
        for number in range(40):
            body = {**BODY, "messages": [{"role": "user", "content": f"{number} " * 60}]}
            status, _, response = await up.post(body, headers={"x-session-id": session})
            assert status == 200
            served.add(response.headers["x-kvring-replica"])
        assert len(served) == 3


async def test_a_session_id_reaches_the_ring_whatever_its_case() -> None:
    async with rig(3, policy={"name": "session_ring"}) as up:
        served = set()
        for number in range(12):
            body = {**BODY, "messages": [{"role": "user", "content": f"{number} " * 60}]}
            name = "X-SESSION-ID" if number % 2 else "x-session-id"
            _, _, response = await up.post(body, headers={name: "conversation 7 é"})
            served.add(response.headers["x-kvring-replica"])
        assert len(served) == 1
