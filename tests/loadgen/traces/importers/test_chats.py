"""Imported chats: a request for each answer, that extends the one before and comes behind it."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import orjson
import pytest

from loadgen.traces.importers.arrivals import ArrivalOptions
from loadgen.traces.importers.chats import import_chats
from loadgen.traces.importers.naming import PromptNaming
from loadgen.traces.request_log import BadLines
from loadgen.traces.trace import TraceError

ARRIVALS = ArrivalOptions()


def chat(*said: str) -> dict[str, Any]:
    roles = ("human", "gpt")
    return {
        "id": "x",
        "conversations": [{"from": roles[at % 2], "value": text} for at, text in enumerate(said)],
    }


LONG = "Please tell me about the weather, the river, the mountain and the sea. " * 5
TWO_TURNS = chat(LONG, "It rains. " * 10, "Will it stop?", "No.")


@pytest.mark.parametrize("listed", [True, False])
def test_each_answer_makes_a_request(tmp_path: Path, listed: bool) -> None:
    path = tmp_path / "chats.json.gz"
    chats = [TWO_TURNS, chat(LONG, "It snows.")]
    data = orjson.dumps(chats) if listed else b"\n".join(map(orjson.dumps, chats))
    path.write_bytes(gzip.compress(data))
    trace = import_chats(path, PromptNaming(16), ARRIVALS)
    turns = [request for request in trace.requests if request.session == "0"]
    (other,) = (request for request in trace.requests if request.session == "1")
    assert trace.name == "chats"
    first = trace.full_blocks(turns[0])
    assert turns[1].block_ids[: len(first)] == first
    assert trace.full_blocks(other) == first
    assert turns[0].output_tokens == 25
    assert turns[1].arrival_seconds > turns[0].arrival_seconds + 25 / 40


def test_the_same_seed_gives_the_same_times(tmp_path: Path) -> None:
    path = tmp_path / "chats.json"
    path.write_bytes(orjson.dumps([TWO_TURNS] * 5))
    first = import_chats(path, PromptNaming(16), ARRIVALS)
    assert first == import_chats(path, PromptNaming(16), ARRIVALS)
    assert first != import_chats(path, PromptNaming(16), ArrivalOptions(seed=1))
    assert len(import_chats(path, PromptNaming(16), ARRIVALS, max_chats=2).requests) == 4


def test_bad_chats_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "chats.json"
    odd = [1, {}, {"conversations": 3}, {"conversations": [{"from": "martian", "value": "x"}]}]
    odd.append({"conversations": [{"from": "human", "value": 7}]})
    path.write_bytes(orjson.dumps([*odd, TWO_TURNS, chat("unanswered"), chat()]))
    bad = BadLines()
    assert len(import_chats(path, PromptNaming(16), ARRIVALS, bad=bad).requests) == 2
    assert bad.count == 5
    assert bad.first[0].startswith(f"{path}, chat 1: ")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no chat with an answer"),
        (b"[]", "no chat with an answer"),
        (b"[1,", "not JSON"),
        (b"nonsense\n", "chats.json:1"),
        (b"x\n" * 200, "more than 100 lines"),
    ],
)
def test_files_without_chats_are_refused(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "chats.json").write_bytes(data)
    with pytest.raises(TraceError, match=message):
        import_chats(tmp_path / "chats.json", PromptNaming(16), ARRIVALS)
