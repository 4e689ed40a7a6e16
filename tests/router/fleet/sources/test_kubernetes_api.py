"""The Kubernetes API server and us: tokens, certificates, permissions, limits."""

from __future__ import annotations

import logging
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

from router.config import KubernetesOptions
from router.fleet.sources.kubernetes_api import ApiServer, ApiServerError
from tests.router.fleet.sources.api_server import api_server
from tests.router.fleet.sources.following import following, until

ONE, TWO, THREE = (f"http://10.0.0.{number}:8000" for number in (1, 2, 3))


async def test_a_token_that_was_replaced_is_read_anew(tmp_path: Path) -> None:
    async with api_server() as server:
        server.tokens = {"first"}
        server.put_two_pods()
        async with following(server.source(tmp_path)) as followed:
            await followed.until_urls(ONE, TWO)
            await server.watched()
            server.tokens = {"second"}
            (tmp_path / "token").write_text("second")
            server.end_watches()
            await server.watched(since=1)
            server.delete("a")
            await followed.until_urls(TWO)
        assert server.asked[-1].authorization == "Bearer second"


async def test_a_token_that_is_not_accepted_is_tried_once_more_then_after_a_while(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kvring.fleet")
    async with api_server() as server:
        server.tokens = {"second"}
        server.put_two_pods()
        async with following(server.source(tmp_path)) as followed:
            await until(lambda: bool(caplog.messages))
            assert server.count("list") == 2
            (tmp_path / "token").write_text("second")
            await followed.until_urls(ONE, TWO)
            await server.watched()
            await until(lambda: len(caplog.messages) == 2)
    assert str(tmp_path / "token") in caplog.messages[0]
    assert "answers again" in caplog.messages[1]
    assert "second" not in caplog.text


@pytest.mark.parametrize("verb", ["list", "watch"])
async def test_a_missing_permission_is_named(
    tmp_path: Path, verb: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kvring.fleet")
    async with api_server() as server:
        server.put_two_pods()
        server.refusals[verb] = (403, {}, 'User "x" cannot\n\x1b[31m do this')
        async with following(server.source(tmp_path)) as followed:
            await until(lambda: server.count(verb) >= 3)
            assert len(followed.lists) == (verb == "watch")
            assert [record.levelname for record in caplog.records] == ["WARNING"]
            server.refusals.clear()
            await followed.until_urls(ONE, TWO)
            await server.watched()
            await until(lambda: len(caplog.messages) == 2)
    words = f"may not {verb} EndpointSlices in namespace models (403); it needs get, list and watch of"
    assert words in caplog.messages[0]
    assert 'User "x" cannot [31m do this' in caplog.messages[0]


async def test_a_server_of_another_kind_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with api_server() as server:
        server.refusals["list"] = (404, {}, "404 page not found")
        async with following(server.source(tmp_path)) as followed:
            await until(lambda: server.count("list") == 2)
            assert followed.lists == []
    assert f"is {server.url} a Kubernetes API server" in caplog.messages[0]


@pytest.mark.parametrize(
    ("told", "seconds"), [("2", 2.0), ("999999999", 60.0), ("soon", 0.0), ("-1", 0.0), ("1e3", 0.0)]
)
async def test_an_overloaded_server_is_given_the_time_it_asks_for(
    tmp_path: Path, told: str, seconds: float
) -> None:
    async with api_server() as server:
        server.refusals["list"] = (429, {"Retry-After": told}, "slow down")
        api = ApiServer(server.options(tmp_path), {})
        async with api.session() as session:
            with pytest.raises(ApiServerError, match=r"429.*slow down") as refused:
                await api.list(session)
        assert refused.value.wait_seconds == seconds


async def test_the_time_that_an_overloaded_server_asks_for_is_waited(tmp_path: Path) -> None:
    async with api_server() as server, api_server() as other:
        server.refusals["list"] = (429, {"Retry-After": "60"}, "slow down")
        other.refusals["list"] = (429, {}, "slow down")
        async with following(server.source(tmp_path)), following(other.source(tmp_path)):
            await until(lambda: other.count("list") == 3)
        assert server.count("list") == 1


async def test_a_list_without_end_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with api_server() as server:
        server.put_two_pods()
        server.instead["list"] = [b'{"items":"' + b"x" * 9_000_000]
        async with following(server.source(tmp_path)) as followed:
            await followed.until_urls(ONE, TWO)
    assert "list is too large" in caplog.messages[0]


async def test_redirects_are_not_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = "/apis/discovery.k8s.io/v1/namespaces/models/endpointslices"
    async with api_server() as server, api_server() as other:
        server.refusals["list"] = (307, {"Location": other.url + path}, "")
        async with following(server.source(tmp_path)):
            await until(lambda: bool(caplog.messages))
        assert other.asked == []
    assert "status 307" in caplog.messages[0]


def test_in_a_pod_all_is_known_without_options(tmp_path: Path) -> None:
    (tmp_path / "namespace").write_text("models\n")
    api = ApiServer(
        KubernetesOptions(service="replicas", token_file=tmp_path / "token"),
        {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"},
    )
    assert api.url == "https://[fd00::1]:6443"
    assert api.namespace == "models"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"namespace": "models"}, "this is no pod"),
        ({"url": "http://127.0.0.1:1"}, "namespace"),
        ({"url": "http://127.0.0.1:1", "namespace": "../x"}, "namespace is no name"),
        ({"url": "http://127.0.0.1:1", "namespace": "models", "service": "a=b"}, "service is no name"),
    ],
)
def test_what_cannot_be_asked_is_refused(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    told = {"service": "replicas", "token_file": tmp_path / "token", **options}
    with pytest.raises(ValueError, match=words):
        ApiServer(KubernetesOptions(**told), {})


async def test_without_a_token_nothing_is_claimed(tmp_path: Path) -> None:
    async with api_server() as server:
        server.put_two_pods()
        async with following(server.source(tmp_path, token_file=tmp_path / "none")) as followed:
            await followed.until_urls(ONE, TWO)
        assert {asked.authorization for asked in server.asked} == {""}


def test_a_token_is_never_sent_in_the_clear_over_a_network(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    for url, sent in (
        ("http://127.0.0.1:8001", True),
        ("http://localhost:8001", True),
        ("http://[::1]:8001", True),
        ("https://10.0.0.1", True),
        ("http://10.0.0.1", False),
        ("http://api.test", False),
    ):
        options = KubernetesOptions(service="s", namespace="n", url=url, token_file=tmp_path / "token")
        assert bool(ApiServer(options, {}).identity()) is sent


def _make_certificate(directory: Path, name: str) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl, which makes the certificates, is not installed")
    key, certificate = directory / f"{name}.key", directory / f"{name}.crt"
    words = f"req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN={name}"
    words += f" -addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {certificate}"
    subprocess.run([openssl, *words.split()], check=True, capture_output=True)


async def test_the_server_s_certificate_is_checked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("server", "other"):
        _make_certificate(tmp_path, name)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    (tmp_path / "ca.crt").write_bytes((tmp_path / "other.crt").read_bytes())
    async with api_server(tls) as server:
        server.put_two_pods()
        async with following(server.source(tmp_path)) as followed:
            await until(lambda: bool(caplog.messages))
            assert server.asked == []
            # As when a cluster changes its CA.
            (tmp_path / "ca.crt").write_bytes((tmp_path / "server.crt").read_bytes())
            await followed.until_urls(ONE, TWO)
            await server.watched()
    assert "certificate" in caplog.messages[0].lower()
