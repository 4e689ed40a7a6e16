"""`kvring trace`: files come out, and what does not fit is one line and exit code 2."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner, Result

from loadgen.cli import kvring
from loadgen.traces.catalog import open_trace
from loadgen.traces.generate.kinds import KINDS, generate


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(kvring, ["trace", *arguments], prog_name="kvring")


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_generated(tmp_path: Path, kind: str) -> None:
    size = {"chat": "--conversations", "agent": "--sessions"}.get(kind, "--requests")
    out = tmp_path / "out.jsonl.gz"
    result = invoke("generate", kind, "--seed", "5", "--out", str(out), size, "20")
    assert result.exit_code == 0, result.output
    trace = open_trace(out, spread=False)
    expected = generate(kind, 5, **{size.removeprefix("--"): 20})
    assert [one.block_ids for one in trace.requests] == [one.block_ids for one in expected.requests]


def test_a_log_is_imported_and_described(tmp_path: Path) -> None:
    log, out = tmp_path / "log.jsonl", tmp_path / "out.jsonl"
    log.write_text('{"model": "m", "prompt": "' + "a" * 300 + '"}\nnonsense\n')
    result = invoke("import", "requests", str(log), "--out", str(out))
    assert result.exit_code == 0, result.output
    assert "1 requests over 0 s" in result.output
    assert "1 lines could not be used, the first: " in result.output
    described = invoke("info", str(out), "--json")
    assert orjson.loads(described.stdout)["requests"] == 1


def test_chats_and_csvs_are_imported(tmp_path: Path) -> None:
    chats, out = tmp_path / "chats.json", tmp_path / "out.jsonl"
    said = [{"from": "human", "value": "hello"}, {"from": "gpt", "value": "hi"}]
    chats.write_bytes(orjson.dumps([{"conversations": said}]))
    assert invoke("import", "chats", str(chats), "--out", str(out)).exit_code == 0
    assert open_trace(out).block_tokens == 16
    table = tmp_path / "azure.csv"
    table.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,4808,10\n")
    assert invoke("import", "azure", str(table), "--out", str(out)).exit_code == 0
    assert open_trace(out).block_tokens == 512


def test_a_shipped_trace_is_described() -> None:
    result = invoke("info", "synthetic")
    assert result.exit_code == 0
    assert "3,993" in result.stdout
    assert "0.650" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["info", "nope"], "no trace 'nope'"),
        (["generate", "nope"], "No such command"),
        (["generate", "hotspot", "--requests", "0", "--out", "OUT"], "--requests: Input should be greater"),
        (["generate", "chat", "--output-tokens", "999", "--out", "OUT"], "output_tokens"),
        (["generate", "chat", "--out", "/nowhere/at/all"], "cannot be written"),
        (["generate", "agent", "--compaction", "twice", "--out", "OUT"], "twice"),
        (["import", "requests", "/missing", "--out", "OUT"], "/missing"),
        (["import", "azure", "pyproject.toml", "--out", "OUT"], "does not begin with the columns"),
        (["import", "chats", "pyproject.toml", "--out", "OUT"], "no chat|JSON|conversations"),
        (["import", "requests", "pyproject.toml", "--out", "OUT"], "no requests|cannot be used"),
    ],
)
def test_what_does_not_fit_is_told_in_a_line(tmp_path: Path, arguments: list[str], message: str) -> None:
    import re

    result = invoke(*(str(tmp_path / "out") if one == "OUT" else one for one in arguments))
    assert result.exit_code == 2, result.output
    assert re.search(message, result.output)
    assert "Traceback" not in result.output
