"""`kvring lint`: exit codes, and that text shows only where it is asked for."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from loadgen.cli import kvring
from tests.router.observe.layout.prompts import body, chat, conversation, prose, system, tool


def lint(*arguments: str) -> Result:
    return CliRunner().invoke(kvring, ["lint", *arguments], prog_name="kvring")


def write(path: Path, bodies: Iterable[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(body) + "\n" for body in bodies))
    return str(path)


def dated(turns: int) -> list[dict[str, Any]]:
    return conversation(turns, lambda turn: [system(f"Secretive. It is 12:0{turn}.\n" + prose("rules", 30))])


def test_a_clean_log(tmp_path: Path) -> None:
    result = lint(write(tmp_path / "log.jsonl", conversation(5, lambda turn: [system(prose("rules", 30))])))
    assert result.exit_code == 0, result.output
    assert "lost by the layout" in result.output


def test_a_fault_above_the_threshold(tmp_path: Path) -> None:
    log = write(tmp_path / "log.jsonl", dated(5))
    result = lint(log, "--json")
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    (finding,) = report["findings"]
    assert (finding["cause"], finding["role"], finding["character"]) == (
        "date",
        "system",
        len("Secretive. It is "),
    )
    assert finding["lost_tokens"] == pytest.approx(4 * finding["lost_tokens_per_request"], abs=1)
    assert report["fault_ratio"] == pytest.approx(finding["lost_tokens"] / report["prompt_tokens"], abs=1e-4)
    assert "is allowed" in result.stderr
    assert lint(log, "--threshold", str(report["fault_ratio"] + 0.01)).exit_code == 0
    assert lint(log, "--threshold", str(report["fault_ratio"] - 0.01)).exit_code == 1
    assert lint(log, "--ignore", "date").exit_code == 0
    assert lint(log, "--ignore", "number").exit_code == 1


def test_no_text_is_shown_unless_asked_for(tmp_path: Path) -> None:
    log = write(tmp_path / "log.jsonl", dated(3))
    for arguments in ([], ["--json"]):
        shown = lint(log, *arguments)
        assert "12:0" not in shown.output
        assert "ecretive" not in shown.output
        shown = lint(log, *arguments, "--show-text")
        assert "12:01" in shown.output


def test_a_clean_break_is_no_fault(tmp_path: Path) -> None:
    rules, history = system(prose("rules", 10)), chat(20)
    bodies = [body([rules, *history[: 2 * turn + 1]]) for turn in range(10)]
    bodies += [body([rules, *history[10 : 2 * turn + 1]]) for turn in range(10, 20)]
    result = lint(write(tmp_path / "log.jsonl", bodies), "--json", "--threshold", "0")
    assert result.exit_code == 0
    (finding,) = json.loads(result.stdout)["findings"]
    assert (finding["cause"], finding["accepted"]) == ("compaction", True)


def test_several_applications_in_one_log(tmp_path: Path) -> None:
    """Each has its own finding, under a number of its own."""
    first = [
        body([system(f"Number {at}.\n" + prose("alpha", 20)), *chat(1, "x" + "abcde"[at])]) for at in range(5)
    ]
    tools = [tool(name) for name in ("read", "write", "search")]
    second = [
        body(
            [system(prose("bravo", 20)), *chat(1, "y" + "abcde"[at])], tools=tools[at % 3 :] + tools[: at % 3]
        )
        for at in range(5)
    ]
    mixed = [one for pair in zip(first, second, strict=True) for one in pair]
    report = json.loads(lint(write(tmp_path / "log.jsonl", mixed), "--json").stdout)
    found = {finding["cause"]: finding for finding in report["findings"]}
    assert set(found) == {"number", "tool_order"}
    assert found["number"]["layout"] != found["tool_order"]["layout"]
    assert report["layouts"] == 2


def test_prompts_without_text_are_counted(tmp_path: Path) -> None:
    bodies = [*dated(2), {"model": "m", "prompt": [1, 2, 3]}]
    assert json.loads(lint(write(tmp_path / "log.jsonl", bodies), "--json").stdout)["unread_requests"] == 1


@pytest.mark.parametrize(
    ("content", "arguments", "words"),
    [
        (None, [], "cannot be read"),
        ("", [], "no requests"),
        ("[1]\n", [], "JSON object"),
        ('{"model": "m", "prompt": "a"}\n', ["--ignore", "fate"], "sliding_window"),
        ('{"model": "m", "prompt": "a"}\n', ["--threshold", "2"], "threshold"),
        ('{"model": "m", "prompt": "a"}\n', ["--url", "http://127.0.0.1:9"], "either LOG or --url"),
    ],
)
def test_what_cannot_be_used(tmp_path: Path, content: str | None, arguments: list[str], words: str) -> None:
    path = tmp_path / "log.jsonl"
    if content is not None:
        path.write_text(content)
    result = lint(str(path), *arguments)
    assert (result.exit_code, words in result.output) == (2, True), result.output
    assert isinstance(result.exception, SystemExit)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "either LOG or --url"),
        (["--url", "http://127.0.0.1:9", "--show-text"], "are for LOG"),
        (["--url", "http://127.0.0.1:9", "--block-tokens", "16"], "are for LOG"),
        (["--url", "http://127.0.0.1:9", "--ignore", "fate"], "sliding_window"),
        (["--url", "not an address"], "no answer"),
    ],
)
def test_what_cannot_be_used_of_a_router(arguments: list[str], words: str) -> None:
    result = lint(*arguments)
    assert (result.exit_code, words in result.output) == (2, True), result.output
    assert isinstance(result.exception, SystemExit)
