"""The gate, end to end: the real command against a live fleet and scripted servers on real sockets."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from loadgen.cli import kvring
from tests.integration.fleets import live_fleet
from tests.loadgen.gate.servers import CachingServer, anthropic_usage, openai_usage, serve

SMALL = ["--conversations", "2", "--turns", "3", "--system-tokens", "200", "--turn-tokens", "60"]


async def gate_process(url: str, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """Run `kvring gate` in a process of its own; return exit code, report and stderr."""
    program = [sys.executable, "-m", "loadgen.cli", "gate", "--url", url, "--json", *arguments]
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(*program, stdout=pipe, stderr=pipe)
    out, err = await child.communicate()
    assert b"Traceback" not in err, err.decode()
    return child.returncode or 0, json.loads(out) if out else {}, err.decode()


def gate(url: str, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """The same in this process."""
    result = CliRunner().invoke(kvring, ["gate", "--url", url, "--json", *arguments], prog_name="kvring")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result.exit_code, json.loads(result.stdout) if result.stdout else {}, result.stderr


async def test_a_live_fleet_is_held_to_its_own_baseline(tmp_path: Path) -> None:
    baseline = tmp_path / "baseline.json"
    arguments = [*SMALL, "--conversations", "4", "--runs", "3", "--baseline", str(baseline)]
    async with live_fleet(2) as fleet:
        url = fleet.routers[0].address
        code, written, _ = await gate_process(url, *arguments, "--write-baseline")
        assert code == 0
        assert json.loads(baseline.read_text()) == written
        # Every turn but a conversation's first finds its history; not one token of an earlier run is found.
        assert written["median"] > 0.5
        assert written["requests"][0] == 0
        assert all(ratio > 0.5 for ratio in written["requests"][1:3])
        # A run in which both replicas compute the shared prompt is a tenth below one in which one does.
        code, held, _ = await gate_process(url, *arguments, "--tolerance", "0.15")
        assert (code, held["holds"]) == (0, True)
        assert held["requests"][0] == 0


def test_a_ratio_below_the_baseline_fails(tmp_path: Path) -> None:
    baseline = tmp_path / "baseline.json"
    server = CachingServer(openai_usage)
    arguments = [*SMALL, "--model", "m", "--runs", "2", "--baseline", str(baseline)]
    with serve(server) as url:
        assert (gate(url, *arguments, "--write-baseline"))[0] == 0
        assert (gate(url, *arguments))[0] == 0
        server.remembers = False
        code, report, said = gate(url, *arguments)
        assert (code, report["holds"]) == (1, False)
        assert "is allowed" in said
        # As far below as it has fallen may be allowed. (Random marks may begin alike, to a letter or two.)
        fallen = report["baseline"] - report["median"]
        assert (gate(url, *arguments, "--tolerance", str(fallen + 0.01)))[0] == 0
        assert (gate(url, *arguments, "--tolerance", str(fallen - 0.01)))[0] == 1


def test_the_median_of_the_runs_counts() -> None:
    server = CachingServer(openai_usage)
    requests = 0

    def usage(total: int, cached: int) -> dict[str, Any]:
        nonlocal requests
        requests += 1
        # Other traffic spoils the second of five runs of six requests.
        return openai_usage(total, 0 if 6 < requests <= 12 else total // 2)

    server.usage = usage
    with serve(server) as url:
        code, report, _ = gate(url, *SMALL, "--model", "m", "--runs", "5")
    assert code == 0
    assert report["runs"][1] == 0
    assert report["median"] == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("cold", ["line", "salt", "off"])
def test_only_a_cold_run_does_not_find_the_one_before(cold: str) -> None:
    server = CachingServer(openai_usage)
    with serve(server) as url:
        code, report, _ = gate(url, *SMALL, "--model", "m", "--runs", "3", "--cold", cold)
    assert code == 0
    first, second, third = report["runs"]
    if cold == "off":
        assert second > first
        assert report["requests"][0] > 0.9
    else:
        assert second == pytest.approx(first, abs=0.01)
        assert third == pytest.approx(first, abs=0.01)
        assert report["requests"][0] < 0.1


def test_anthropic_shape() -> None:
    server = CachingServer(anthropic_usage)
    with serve(server) as url:
        arguments = [*SMALL, "--api", "anthropic", "--model", "m", "--runs", "2", "--api-key", "secret"]
        code, report, _ = gate(url, *arguments)
    assert code == 0
    assert report["median"] > 0.6
    # Read, written and neither make the whole.
    read = [anthropic_usage(1000, 700)[name] for name in ("input_tokens", "cache_creation_input_tokens")]
    assert sum(read) == 300
    for path, body, headers in server.requests:
        assert path == "/v1/messages"
        assert (headers["x-api-key"], "Authorization" in headers) == ("secret", False)
        assert headers["anthropic-version"]
        assert body["system"][0]["text"].startswith("Run ")
        assert body["system"][-1]["cache_control"] == {"type": "ephemeral"}
        assert body["messages"][-1]["content"][0]["cache_control"] == {"type": "ephemeral"}
    # The second turn holds the real answer of the first.
    assert server.requests[1][1]["messages"][1]["content"] == "Salt water."


@pytest.mark.parametrize("api", ["openai", "anthropic"])
def test_usage_that_does_not_tell_is_no_zero(api: str) -> None:
    silent = {
        "openai": lambda total, cached: {"prompt_tokens": total, "completion_tokens": 1},
        "anthropic": lambda total, cached: {"input_tokens": total, "output_tokens": 1},
    }
    with serve(CachingServer(silent[api])) as url:
        arguments = [*SMALL, "--api", api, "--model", "m", "--runs", "1"]
        code, _, said = gate(url, *arguments)
        assert (code, "--enable-prompt-tokens-details" in said) == (2, True)
        code, report, _ = gate(url, *arguments, "--absent-is-zero")
        assert (code, report["median"]) == (0, 0.0)


def test_a_true_zero_is_measured() -> None:
    server = CachingServer(openai_usage)
    server.remembers = False
    with serve(server) as url:
        code, report, _ = gate(url, *SMALL, "--model", "m", "--runs", "1")
    assert (code, report["median"], report["unreported"]) == (0, 0.0, 0)


def test_cases_of_a_file(tmp_path: Path) -> None:
    log = tmp_path / "cases.jsonl"
    chat = {"model": "m", "messages": [{"role": "user", "content": "The sea. " * 40}], "stream": True}
    text = {"model": "m", "prompt": "The sea. " * 40}
    messages = {"model": "m", "system": "Be brief.", "messages": chat["messages"]}
    log.write_text("".join(json.dumps(body) + "\n" for body in (chat, chat, text, text, messages)))
    server = CachingServer(openai_usage)
    server.usage = lambda total, cached: {**openai_usage(total, cached)}
    with serve(server) as url:
        code, report, _ = gate(url, "--cases", str(log), "--runs", "1")
    assert code == 0
    paths = [path for path, _, _ in server.requests]
    assert paths == ["/v1/chat/completions"] * 2 + ["/v1/completions"] * 2 + ["/v1/messages"]
    assert not any("stream" in body for _, body, _ in server.requests)
    assert server.requests[0][1]["messages"][0]["role"] == "system"
    assert server.requests[2][1]["prompt"].startswith("Run ")
    assert server.requests[4][1]["system"].startswith("Run ")
    assert report["requests"][1] > 0.9
    assert report["requests"][3] > 0.9


def test_what_cannot_be_measured_is_exit_code_2(tmp_path: Path) -> None:
    baseline = tmp_path / "baseline.json"
    tokens = tmp_path / "tokens.jsonl"
    tokens.write_text(json.dumps({"model": "m", "prompt": [1, 2, 3]}) + "\n")
    with serve(CachingServer(openai_usage)) as url:
        small = [*SMALL, "--model", "m", "--runs", "1"]
        for arguments, words in (
            ([*small, "--baseline", str(tmp_path / "none.json")], "cannot be read"),
            ([*small, "--write-baseline"], "--baseline"),
            (["--cases", str(tmp_path / "none.jsonl")], "cannot be read"),
            (["--cases", str(tokens), "--runs", "1"], "--cold salt"),
            ([*small, "--runs", "0"], "--runs"),
        ):
            code, _, said = gate(url, *arguments)
            assert (code, words in said) == (2, True), said
        baseline.write_text("{}")
        assert (gate(url, *small, "--baseline", str(baseline)))[0] == 2
        assert (gate(url, *small, "--baseline", str(baseline), "--write-baseline"))[0] == 0
        # The ratio of other cases says nothing about these.
        code, _, said = gate(url, *small, "--turns", "2", "--baseline", str(baseline))
        assert (code, "other cases" in said) == (2, True)
    code, _, said = gate(url, *small)
    assert (code, "ConnectError" in said) == (2, True), said


async def test_a_failing_request_is_told() -> None:
    async with live_fleet(1) as fleet:
        code, _, said = await gate_process(
            fleet.routers[0].address, *SMALL, "--model", "no-such-model", "--runs", "1"
        )
    assert (code, "request 1 of run 1" in said) == (2, True)
