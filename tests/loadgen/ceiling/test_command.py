"""`kvring ceiling` on logs and traces: figures that add up, and clear errors."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from loadgen.cli import kvring
from tests.router.observe.layout.prompts import body, chat, conversation, prose, system


def ceiling(*arguments: str) -> Result:
    return CliRunner().invoke(kvring, ["ceiling", *arguments], prog_name="kvring")


def write(path: Path, bodies: Iterable[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(body) + "\n" for body in bodies))
    return str(path)


def dated(turns: int) -> list[dict[str, Any]]:
    return conversation(turns, lambda turn: [system(f"It is 12:0{turn}.\n" + prose("rules", 30))])


def test_a_log_adds_up(tmp_path: Path) -> None:
    result = ceiling(write(tmp_path / "log.jsonl", dated(6)), "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.output)
    layout = report["layout"]
    assert report["requests"] == layout["requests"] == 6
    assert report["prompt_tokens"] == layout["prompt_tokens"]
    assert report["hit_tokens"] == layout["hit_tokens"] == 0
    assert layout["hit_tokens"] + layout["lost_tokens"] + layout["new_tokens"] == pytest.approx(
        layout["prompt_tokens"], abs=2
    )
    (finding,) = layout["findings"]
    assert (finding["cause"], finding["where"], finding["requests"]) == ("date", "messages[0]", 5)
    assert report["by_cache"][-1]["hit_ratio"] == report["hit_ratio"] == 0.0


def test_mending_the_layout_brings_what_was_lost(tmp_path: Path) -> None:
    """The loss is not an opinion: the same log with its date last hits that many tokens more."""
    broken = json.loads(ceiling(write(tmp_path / "broken.jsonl", dated(8)), "--json").output)
    mended_bodies = conversation(8, lambda turn: [system(prose("rules", 30))])
    mended = json.loads(ceiling(write(tmp_path / "mended.jsonl", mended_bodies), "--json").output)
    assert mended["layout"]["findings"] == []
    # To a block for each request: only whole ones hit.
    assert mended["hit_tokens"] == pytest.approx(broken["layout"]["lost_tokens"], abs=8 * 16)


def test_a_good_log_has_no_findings_and_a_high_bound(tmp_path: Path) -> None:
    bodies = [
        body([system(prose("rules", 30)), *chat(turn + 1, name)])
        for name in ("one", "two")
        for turn in range(5)
    ]
    report = json.loads(ceiling(write(tmp_path / "log.jsonl", bodies), "--json", "--replicas", "1,2").output)
    assert report["layout"]["findings"] == []
    assert report["hit_ratio"] > 0.7
    one, two = report["by_replicas_at_random"]
    assert one["hit_ratio"] == report["hit_ratio"] > two["hit_ratio"] > 0


def test_tables(tmp_path: Path) -> None:
    result = ceiling(write(tmp_path / "log.jsonl", dated(3)))
    assert result.exit_code == 0
    for words in ("hit bound", "by size of one LRU cache", "messages[0] system", "Stable first"):
        assert words in result.output


def test_a_trace(tmp_path: Path) -> None:
    lines = [
        {
            "timestamp": at,
            "input_length": 40,
            "output_length": 1,
            "hash_ids": [1, 2, at + 3],
            "block_size": 16,
        }
        for at in range(3)
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    report = json.loads(ceiling(str(path), "--json", "--cache-blocks", "1,2").output)
    assert (report["requests"], report["hit_tokens"], report["sessions"]) == (3, 64, None)
    assert [size["hit_tokens"] for size in report["by_cache"]] == [32, 64]


@pytest.mark.parametrize(
    ("content", "arguments", "words"),
    [
        (None, [], "cannot be read"),
        ("", [], "no requests"),
        ("nonsense\n", [], "not valid JSON"),
        ('{"hash_ids": [1], "input_length": "x"}\n', [], "timestamp"),
        ('{"prompt": "a", "model": "m"}\n', ["--cache-blocks", "0"], "--cache-blocks"),
        ('{"prompt": "a", "model": "m"}\n', ["--replicas", "x"], "--replicas"),
        ('{"prompt": "a", "model": "m"}\n', ["--tokenizer", "EMPTY"], "tokenizer.json"),
    ],
)
def test_what_cannot_be_used(tmp_path: Path, content: str | None, arguments: list[str], words: str) -> None:
    path = tmp_path / "log.jsonl"
    if content is not None:
        path.write_text(content)
    result = ceiling(str(path), *(str(tmp_path) if one == "EMPTY" else one for one in arguments))
    assert (result.exit_code, words in result.output) == (2, True), result.output
    assert isinstance(result.exception, SystemExit)
