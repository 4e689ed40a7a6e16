"""Environment variables that are meant as options and are none are refused, never ignored."""

from __future__ import annotations

import pytest

from replica.options import ReplicaOptions
from router.config import RouterConfig
from router.settings import SettingsError


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("KVRING_LISTEN_PORT", "8081", "KVRING_LISTEN__PORT"),
        ("kvring_listen_port", "8081", "KVRING_LISTEN__PORT"),
        ("KVRING_FLEET_KUBERNETES_SERVICE", "s", "KVRING_FLEET__KUBERNETES__SERVICE"),
        ("KVRING_REDIS_URL", "redis://h", "KVRING_REDIS__URL"),
        ("KVRING__LISTEN__PORT", "1", "KVRING_LISTEN__PORT"),
        ("KVRING_RELOAD__SECONDS", "1", "KVRING_RELOAD_SECONDS"),
        ("KVRING_POLICI__NAME", "affinity", ""),
        ("KVRING_LISTEN__PROT", "1", ""),
        ("KVRING_LISTEN__PORT__NUMBER", "1", ""),
        ("KVRING_FLEET__REPLICAS__0__URL", "http://h", ""),
    ],
)
def test_a_misspelt_option_is_refused_by_its_name(
    variable: str, value: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsError) as caught:
        RouterConfig.load()
    assert f"environment variable {variable} is no option" in str(caught.value)
    assert str(caught.value).endswith(f"it is {told}" if told else "no option")


def test_all_that_are_misspelt_are_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("KVRING_LISTEN_PORT", "KVRING_POLICI__NAME"):
        monkeypatch.setenv(variable, "1")
    with pytest.raises(SettingsError) as caught:
        RouterConfig.load()
    assert len(str(caught.value).splitlines()) == 2


def test_tables_have_names_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVRING_POLICY__OPTIONS__HIT_WEIGHT__DEEP", "2")
    monkeypatch.setenv("KVRING_MODELS__M__TOKENIZER_DIRECTORY", "/t")
    monkeypatch.setenv("KVRING_CONTROL__PORT", "9090")
    monkeypatch.setenv("KVRING_LISTEN", '{"port": 1}')
    config = RouterConfig.load()
    assert config.policy.options == {"hit_weight": {"deep": "2"}}
    assert str(config.models["m"].tokenizer_directory) == "/t"
    assert (config.control.port, config.listen.port) == (9090, 1)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("KVRING_SERVICE_HOST", "10.0.0.1"),
        ("KVRING_SERVICE_PORT_HTTP", "8080"),
        ("KVRING_PORT", "tcp://10.0.0.1:8080"),
        ("KVRING_LISTEN_PORT", "tcp://10.0.0.1:8080"),
        ("KVRING_LISTEN_PORT_8080_TCP", "tcp://10.0.0.1:8080"),
        ("KVRING_LISTEN_PORT_8080_TCP_ADDR", "10.0.0.1"),
        ("KVRING_REPLICA_NAME", "r0"),
        ("KVRING_REPLICA_CHAIN__SEED", "0"),
        ("KVRING_REPLICA_CHAIN__SED", "0"),
        ("OTHER_LISTEN__PROT", "1"),
    ],
)
def test_what_others_set_does_no_harm(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = RouterConfig.load()
    monkeypatch.setenv(variable, value)
    assert RouterConfig.load() == before
    assert not caplog.records


def test_what_may_be_meant_for_somebody_else_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("KVRING_LISTEN_PROT", "1")
    RouterConfig.load()
    assert "KVRING_LISTEN_PROT is no option" in caplog.text


@pytest.mark.parametrize("variable", ["KVRING_REPLICA_ECHO_BLOCK_COUNT", "KVRING_REPLICA_EKO__BLOCK_COUNT"])
def test_a_replica_refuses_them_too(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVRING_LISTEN_PORT", "1")
    ReplicaOptions.load()
    monkeypatch.setenv(variable, "1")
    with pytest.raises(SettingsError, match=variable):
        ReplicaOptions.load()
