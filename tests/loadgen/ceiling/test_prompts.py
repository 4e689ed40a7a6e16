"""Names of logged prompts: over the model's tokens, or over bytes in the order that the client sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loadgen.ceiling.bound import BoundMeter
from loadgen.ceiling.logs import measure_log
from loadgen.ceiling.prompts import PromptNamer
from loadgen.traces.request_log import CHAT_PATH, MESSAGES_PATH, LoggedRequest
from router.chain.prompt import chat_prompt
from router.chain.tokenizer import ModelTokenizer
from router.observe.layout.units import read_units
from tests.router.observe.layout.prompts import body, chat, conversation, prose, system, tool
from tests.tiny_tokenizer import CHATML, SPECIAL, tiny_tokenizer_json


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "tokenizer.json").write_text(tiny_tokenizer_json())
    (tmp_path / "chat_template.jinja").write_text(CHATML)
    return tmp_path


def logged(request: dict[str, Any], path: str = CHAT_PATH) -> LoggedRequest:
    return LoggedRequest(None, path, request)


def named(namer: PromptNamer, request: LoggedRequest) -> tuple[list[int], int]:
    return namer.name(request, read_units(request.body))


def test_tokens_are_the_model_s_own(directory: Path) -> None:
    request = body([system(prose("rules", 5)), *chat(2)])
    tokenizer = ModelTokenizer.from_directory(directory)
    segments, _ = tokenizer.segments(chat_prompt(request))
    tokens = len(tokenizer.tokenizer.encode("".join(segments), add_special_tokens=False).ids)
    namer = PromptNamer(16, directory)
    ids, prompt_tokens = named(namer, logged(request))
    assert (len(ids), prompt_tokens) == (tokens // 16, tokens)
    assert SPECIAL[1] in segments[0]
    assert namer.by_bytes == 0


@pytest.mark.parametrize(
    "request_",
    [
        logged({"model": "m", "system": "Be brief.", "messages": chat(1)}, MESSAGES_PATH),
        logged(body([{"role": "nobody", "content": "a" * 100}])),
    ],
    ids=["another form", "refused by the template"],
)
def test_what_the_tokenizer_cannot_name_is_named_by_bytes(directory: Path, request_: LoggedRequest) -> None:
    with_tokens, without = PromptNamer(16, directory), PromptNamer(16)
    one, other = named(with_tokens, request_), named(without, request_)
    assert (one, with_tokens.by_bytes) == (other, 1)


def test_bytes_keep_the_order_of_keys_and_the_keys_of_the_prompt() -> None:
    namer = PromptNamer(16)
    plain = tool("read")
    turned = dict(reversed(plain.items()))
    names = {
        named(namer, logged(request))[0].pop(0)
        for request in (
            body(chat(1), tools=[plain]),
            body(chat(1), tools=[turned]),
            body(chat(1), tools=[plain], cache_salt="a"),
            body(chat(1), tools=[plain]) | {"model": "n"},
        )
    }
    assert len(names) == 4


def test_causes_are_the_same_by_tokens_and_by_bytes(directory: Path) -> None:
    bodies = conversation(6, lambda turn: [system(f"It is 12:0{turn}.\n" + prose("rules", 20))])
    reports = []
    for namer in (PromptNamer(16), PromptNamer(16, directory)):
        measure = measure_log(map(logged, bodies), namer, BoundMeter(16))
        layout = measure.layout
        assert layout.hit_tokens + layout.lost_tokens + layout.fresh_tokens == pytest.approx(
            layout.prompt_tokens
        )
        assert layout.prompt_tokens == measure.bound.prompt_tokens
        (row,) = layout.rows
        reports.append((row.cause, row.where, row.character, row.requests, round(row.lost_ratio, 1)))
    assert reports[0] == reports[1]
