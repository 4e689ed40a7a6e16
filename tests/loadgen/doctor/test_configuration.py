"""What a file alone shows: whether it is usable, what it opens, and by what it knows sessions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loadgen.doctor.evidence import Evidence
from loadgen.doctor.examine import read_config
from router.config import RouterConfig
from tests.loadgen.doctor.patient import (
    NOTE,
    WARNING,
    WRONG,
    diagnose,
    look,
    router,
    severities,
    verdict,
    write,
)
from tests.router.scripted import rig
from tests.tiny_tokenizer import write_tiny_tokenizer


def of(**sections: Any) -> Evidence:
    return Evidence(config=RouterConfig.load(flags=sections))


@pytest.mark.parametrize(
    ("sections", "told"),
    [
        ({"listen": {"prt": 1}}, "listen.prt"),
        ({"chain": {"block_tokens": 0}}, "chain.block_tokens"),
        ({"policy": {"name": "no_such_policy"}}, "no_such_policy"),
        ({"policy": {"name": "affinity", "options": {"nothing": 1}}}, "nothing"),
        ({"observe": {"shadow": [{"name": "x", "policy": "nobody"}]}}, "observe.shadow x"),
        ({"models": {"m": {"tokenizer_directory": "/nowhere"}}}, "models.m.tokenizer_directory"),
        ({"redis": {"url": "http://user:hunter2@there"}}, "redis.url"),
        ({"fleet": {"leases": {"enabled": True}}}, "fleet.leases needs redis.url"),
    ],
)
async def test_what_cannot_be_used_is_told(tmp_path: Path, sections: dict[str, Any], told: str) -> None:
    diagnosis = await diagnose(write(tmp_path, **sections))
    found = verdict(diagnosis, "configuration")
    assert severities(found) == [WRONG]
    assert told in found.findings[0].seen
    assert not diagnosis.well
    assert "hunter2" not in str(diagnosis.to_json())


async def test_a_file_that_is_no_toml(tmp_path: Path) -> None:
    file = tmp_path / "kvring.toml"
    file.write_text("[listen\n")
    assert severities(verdict(await diagnose(file), "configuration")) == [WRONG]


def test_a_tokenizer_that_cannot_be_read_does_not_hide_another(tmp_path: Path) -> None:
    good = write_tiny_tokenizer(tmp_path / "good")
    models = {"bad": {"tokenizer_directory": tmp_path / "bad"}, "good": {"tokenizer_directory": good}}
    evidence = read_config(write(tmp_path, models=models))
    assert evidence.namers is not None
    assert evidence.namers.by_tokens("good") is not None
    assert len(evidence.config_problems) == 1


def test_a_file_that_is_well(tmp_path: Path) -> None:
    found = look(read_config(write(tmp_path, listen={"port": 1})), "configuration")
    assert found.looked
    assert not found.findings


@pytest.mark.parametrize(
    ("sections", "found"),
    [
        ({}, []),
        ({"listen": {"host": "0.0.0.0"}}, [NOTE]),
        ({"listen": {"host": "0.0.0.0"}, "observe": {"explain": True}}, [WARNING]),
        ({"listen": {"host": "0.0.0.0"}, "observe": {"explain": True}, "control": {"port": 9090}}, []),
        ({"observe": {"explain": True}}, []),
        ({"listen": {"host": "::1"}, "observe": {"explain": True}}, []),
    ],
)
def test_an_open_control_surface(sections: dict[str, Any], found: list[str]) -> None:
    assert severities(look(of(**sections), "open_port")) == found


async def test_a_control_surface_where_clients_come_in() -> None:
    async with rig(1) as one, rig(1, control={"port": 0}) as apart:
        # Two names of one address: as an ingress that passes everything on.
        public = one.router.address.replace("127.0.0.1", "localhost")
        seen = await diagnose(url=one.router.address, api_url=public)
        assert severities(verdict(seen, "open_port")) == [WARNING]
        seen = await diagnose(url=apart.router.control_address, api_url=apart.router.address)
        assert not verdict(seen, "open_port").findings
        assert seen.well
        # Its other port does not tell of the fleet, and the doctor says which does.
        seen = await diagnose(url=apart.router.address)
        assert "control port" in verdict(seen, "router").findings[0].seen


@pytest.mark.parametrize(
    ("sections", "found"),
    [
        ({}, []),
        ({"listen": {"host": "0.0.0.0"}}, [NOTE]),
        ({"listen": {"host": "0.0.0.0"}, "chain": {"seed": "our own"}}, []),
    ],
)
def test_the_seed_that_everybody_knows(sections: dict[str, Any], found: list[str]) -> None:
    verdict = look(of(**sections), "seed")
    assert severities(verdict) == found
    assert "our own" not in str(verdict)


BY_SESSION = {"policy": {"name": "session_ring"}}


@pytest.mark.parametrize("header", ["x-request-id", "X-Correlation-ID", "traceparent", "x-b3-spanid"])
def test_ids_of_requests_as_session_keys(header: str) -> None:
    sessions = {"sessions": {"header": header}}
    assert severities(look(of(**sessions, **BY_SESSION), "session_key")) == [WRONG]
    assert severities(look(of(**sessions), "session_key")) == [NOTE]
    shadow = {"observe": {"shadow": [{"name": "s", "policy": "kvaware"}]}}
    assert severities(look(of(**sessions, **shadow), "session_key")) == [WARNING]


@pytest.mark.parametrize("header", ["user-agent", "Authorization"])
def test_session_keys_that_all_share(header: str) -> None:
    assert severities(look(of(sessions={"header": header}, **BY_SESSION), "session_key")) == [WRONG]


@pytest.mark.parametrize("header", ["x-session-id", "x-conversation-id", "x-user", "x-chat-id"])
def test_session_keys_that_last(header: str) -> None:
    assert not look(of(sessions={"header": header}, **BY_SESSION), "session_key").findings


MOVED = """
    kvring_turn_prompt_tokens_total{model="m",turn="1"} 10000
    kvring_turn_prompt_tokens_total{model="m",turn="2"} 20000
    kvring_turn_hit_tokens_total{model="m",turn="2"} 1000
    kvring_uncached_tokens_total{replica="r0",cause="routed_by_load"} 15000
"""


def test_turns_that_come_under_other_keys() -> None:
    moved = Evidence(router=router(metrics=MOVED, policy="session_ring"))
    assert severities(look(moved, "session_key")) == [WRONG]
    # Policies that look at load move turns for good reasons.
    assert not look(Evidence(router=router(metrics=MOVED)), "session_key").findings
    kept = MOVED.replace(" 1000\n", " 18000\n")
    assert not look(Evidence(router=router(metrics=kept, policy="session_ring")), "session_key").findings
