"""Workloads: the same from the same seed, histories real, sizes about as asked."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from itertools import accumulate, islice
from random import Random
from typing import Any

import pytest

from loadgen.workloads.multi_turn import MultiTurn
from loadgen.workloads.prose import TOKENS_PER_WORD, Prose
from loadgen.workloads.rag import Rag, draw_distinct
from loadgen.workloads.session import Ask, Session, Workload
from loadgen.workloads.shared_prompt import SharedPrompt

ASK = Ask("some-model", 12)


def bodies(workload: Workload, sessions: int) -> list[list[dict[str, Any]]]:
    return [talk(session) for session in islice(workload.sessions(), sessions)]


def talk(session: Session) -> list[dict[str, Any]]:
    asked = []
    answer = None
    while (body := session.next_body(answer)) is not None:
        asked.append(body)
        answer = f"answer {len(asked)}"
    return asked


def make(kind: str, seed: int) -> Workload:
    kinds: dict[str, Workload] = {
        "multi_turn": MultiTurn(ASK, seed, turns=3, turn_tokens=40, system_tokens=50),
        "shared_prompt": SharedPrompt(ASK, seed, system_tokens=80),
        "rag": Rag(ASK, seed, corpus_documents=10, document_tokens=40),
    }
    return kinds[kind]


KINDS = ["multi_turn", "shared_prompt", "rag"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_names_a_run(kind: str) -> None:
    first = bodies(make(kind, 5), 4)
    assert first == bodies(make(kind, 5), 4)
    assert first != bodies(make(kind, 6), 4)
    assert all(len(session) == make(kind, 5).turns for session in first)


def test_a_seed_is_the_same_in_another_process() -> None:
    program = (
        "from loadgen.workloads.prose import Prose; from loadgen.workloads.session import source;"
        "print(Prose(source(3, 'chat', 1)).paragraph(30))"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": "."},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(texts) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_sessions_differ_and_bodies_are_asked_alike(kind: str) -> None:
    asked = bodies(make(kind, 1), 5)
    assert len({session[0]["messages"][-1]["content"] for session in asked}) == 5
    assert len({session[0]["messages"][0]["content"] for session in asked}) == 1
    for body in (body for session in asked for body in session):
        assert (body["model"], body["max_tokens"], body["temperature"]) == ("some-model", 12, 0)


def test_each_turn_carries_the_real_history() -> None:
    first, second, third = talk(next(iter(MultiTurn(ASK, turns=3).sessions())))
    assert [message["role"] for message in third["messages"]] == [
        "system", "user", "assistant", "user", "assistant", "user",
    ]  # fmt: skip
    assert second["messages"][:-2] == first["messages"]
    assert third["messages"][:-2] == second["messages"]
    assert second["messages"][-2] == {"role": "assistant", "content": "answer 1"}
    assert third["messages"][-2] == {"role": "assistant", "content": "answer 2"}


def test_sessions_do_not_depend_on_how_others_went() -> None:
    alone = list(islice(make("multi_turn", 1).sessions(), 3))[2]
    after = make("multi_turn", 1).sessions()
    for session in islice(after, 2):
        talk(session)
    assert talk(next(after)) == talk(alone)


def test_sizes() -> None:
    for tokens in (0, 1, 50, 500):
        words = len(Prose(Random(tokens)).paragraph(tokens).split())
        assert tokens <= words * TOKENS_PER_WORD < tokens + 40


def test_prose_is_whole_sentences() -> None:
    text = Prose(Random(1)).paragraph(2000)
    assert "{" not in text
    assert all(sentence[0].isupper() for sentence in text.removesuffix(".").split(". "))
    assert Prose(Random(1)).question().endswith("?")


def test_documents_are_drawn_by_zipf() -> None:
    """10,000 first draws of a corpus of 10: each rank within five deviations of its share."""
    weights = [1 / rank for rank in range(1, 11)]
    cumulative = list(accumulate(weights))
    counts = Counter(draw_distinct(Random(f"{i}"), cumulative, 3)[0] for i in range(10_000))
    for rank, weight in enumerate(weights):
        share = weight / sum(weights)
        assert abs(counts[rank] - 10_000 * share) < 5 * (10_000 * share * (1 - share)) ** 0.5


def test_a_question_has_different_documents_even_under_a_steep_law() -> None:
    cumulative = list(accumulate(rank**-20.0 for rank in range(1, 6)))
    for seed in range(50):
        assert sorted(draw_distinct(Random(seed), cumulative, 5)) == [0, 1, 2, 3, 4]
    (body,) = talk(next(iter(Rag(ASK, documents=4, corpus_documents=4, document_tokens=20).sessions())))
    assert {f"Document {number}" in body["messages"][1]["content"] for number in (1, 2, 3, 4)} == {True}


@pytest.mark.parametrize("documents", [0, 11])
def test_a_question_cannot_have_more_documents_than_there_are(documents: int) -> None:
    with pytest.raises(ValueError, match="at least one document"):
        Rag(ASK, documents=documents, corpus_documents=10)
