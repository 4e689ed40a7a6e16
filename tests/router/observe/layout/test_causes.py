"""Each cause of divergence, in a log made for it: the place, the cost to the byte, and nothing else found."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from router.observe.layout.cause import Cause
from router.observe.layout.compare import Divergence
from router.observe.layout.memory import LayoutMemory
from tests.router.observe.layout.prompts import (
    assistant,
    body,
    chat,
    conversation,
    prose,
    size,
    sketch_body,
    system,
    tool,
    user,
)

END = "\n"

Found = list[list[tuple[Divergence, int]]]


def see(bodies: Iterable[dict[str, Any]], keep_text: bool = True) -> Found:
    """Return what each body lost, and to which divergences.

    What is lost reaches to where the prompts differ again: equal first letters of the next message count.
    """
    memory = LayoutMemory(64 * 1024 * 1024, 1000)
    return [list(memory.see(sketch_body(body, memory.part, keep_text)).lost) for body in bodies]


def only(found: list[tuple[Divergence, int]]) -> tuple[Divergence, int]:
    assert len(found) == 1, found
    return found[0]


@pytest.mark.parametrize("keep_text", [True, False])
def test_a_conversation_that_grows_loses_nothing(keep_text: bool) -> None:
    bodies = conversation(6, lambda turn: [system(prose("stable", 10))])
    assert not any(see(bodies, keep_text))


def test_conversations_that_share_a_system_prompt_lose_nothing() -> None:
    rules = system(prose("stable", 10))
    assert not any(see(body([rules, *chat(2, name)]) for name in ("one", "two", "three", "four")))


@pytest.mark.parametrize("keep_text", [True, False])
@pytest.mark.parametrize(
    ("values", "cause"),
    [
        (("2024-05-01 12:03:07", "2024-05-01 12:04:11", "2024-05-01 12:09:59"), Cause.DATE),
        (("Friday, May 3, 2024", "Monday, May 6, 2024", "Sunday, May 12, 2024"), Cause.DATE),
        (("1714560000", "1714560061", "1714561234"), Cause.DATE),
        (
            (
                "0f8fad5b-d9cb-469f-a165-70867728950e",
                "7c9e6679-7425-40de-944b-e07fc1f90ae7",
                "6fa459ea-ee8a-3ca4-894e-db77e160355e",
            ),
            Cause.IDENTIFIER,
        ),
        (("req_8fj3kd92", "req_0a7c44be", "req_77d1e0fa"), Cause.IDENTIFIER),
        (("17", "18", "19"), Cause.NUMBER),
    ],
)
def test_a_value_in_the_system_prompt(values: tuple[str, ...], cause: Cause, keep_text: bool) -> None:
    head, tail = "You help people. It is now ", ".\n" + prose("rules", 20)
    bodies = conversation(3, lambda turn: [system(head + values[turn] + tail)])
    found = see(bodies, keep_text)
    assert found[0] == []
    for turn in (1, 2):
        divergence, lost = only(found[turn])
        assert divergence.cause is cause
        place = (divergence.kind, divergence.index, divergence.role, divergence.character)
        assert place == ("messages", 0, "system", len(head))
        assert divergence.at_bytes == len("system") + 1 + len(head)
        # All that the turn before held, but for the value and what stands in front of it.

        before = bodies[turn - 1]["messages"]
        assert lost == size(*before) - divergence.at_bytes - len(values[turn - 1])


def test_a_value_costs_new_conversations_the_rest_of_the_system_prompt() -> None:
    rules = ".\n" + prose("rules", 20)
    bodies = [
        body([system(f"Today is 2024-05-{day:02}{rules}"), *chat(1, name)])
        for day, name in enumerate(("alpha", "bravo", "charlie"), 10)
    ]
    for found in see(bodies)[1:]:
        divergence, lost = only(found)
        assert (divergence.cause, divergence.character) == (Cause.DATE, len("Today is "))
        # The end of the message is the same, and the next begins alike.
        assert lost == len(rules) + len(END + "user\n" + "Question")


def test_tools_in_changing_order() -> None:
    tools = [tool(name) for name in ("read", "write", "search", "list", "fetch")]
    orders = [tools, [tools[0], *tools[:0:-1]], [tools[0], tools[2], tools[1], tools[4], tools[3]]]
    rules = system(prose("stable", 10))
    bodies = [body([rules, *chat(turn + 1)], tools=orders[turn]) for turn in range(3)]
    same = sum(len(compact(one)) + len("tool") + 2 for one in tools[1:])
    for turn in (1, 2):
        divergence, lost = only(see(bodies[turn - 1 : turn + 1])[1])
        assert divergence.cause is Cause.TOOL_ORDER
        assert (divergence.kind, divergence.index) == ("tools", 1)
        assert lost == pytest.approx(same + size(rules, *chat(turn)), abs=120)
        assert lost <= same + size(rules, *chat(turn))


def test_another_set_of_tools() -> None:
    tools = [tool(name) for name in ("read", "write", "search")]
    rules = system(prose("stable", 10))
    bodies = [body([rules, *chat(1)], tools=tools[:2]), body([rules, *chat(2)], tools=tools)]
    divergence, lost = only(see(bodies)[1])
    assert (divergence.cause, divergence.kind, divergence.index) == (Cause.TOOL_SET, "tools", 2)
    assert lost == size(rules, *chat(1))
    divergence, lost = only(see([bodies[1], body([rules, *chat(3)], tools=tools[:2])])[1])
    assert (divergence.cause, divergence.kind, divergence.index) == (Cause.TOOL_SET, "tools", 2)
    assert lost == size(rules, *chat(2))


def test_json_keys_in_changing_order() -> None:
    one = tool("read")
    other = {"function": {key: one["function"][key] for key in ("parameters", "name", "description")}} | {
        "type": "function"
    }
    rules = system(prose("stable", 10))
    found = see([body([rules, *chat(1)], tools=[one]), body([rules, *chat(2)], tools=[other])])
    divergence, lost = only(found[1])
    assert (divergence.cause, divergence.kind, divergence.index) == (Cause.KEY_ORDER, "tools", 0)
    assert divergence.character == len('{"')
    assert lost == size(rules, *chat(1)) + len(compact(other)) - len('{"') + 1


def test_json_keys_in_an_earlier_message() -> None:
    result = {name: prose(name, 1) for name in ("alpha", "beta", "gamma")}
    turned = dict(reversed(result.items()))
    messages = [*chat(1), assistant(json.dumps(result)), user(prose("next", 2))]
    later = [*chat(1), assistant(json.dumps(turned)), user(prose("next", 2)), *chat(1, "tail")]
    divergence, _ = only(see([body(messages), body(later)])[1])
    assert (divergence.cause, divergence.index, divergence.role) == (Cause.KEY_ORDER, 1, "assistant")


def test_white_space() -> None:
    rules = prose("stable", 10)
    spaced = rules.replace(". ", ".  ")
    found = see([body([system(rules), *chat(1)]), body([system(spaced), *chat(2)])])
    divergence, lost = only(found[1])
    at = rules.index(". ") + 2
    assert (divergence.cause, divergence.index, divergence.character) == (Cause.WHITE_SPACE, 0, at)
    assert lost == size(system(spaced), *chat(1)) - len("system") - 1 - at


@pytest.mark.parametrize("keep_text", [True, False])
def test_a_short_text_in_front(keep_text: bool) -> None:
    rules = prose("stable", 20)
    bodies = [
        body([system(f"You help {name}.\n{rules}"), *chat(1, name)]) for name in ("Ann", "Bo", "Charles")
    ]
    for found in see(bodies, keep_text)[1:]:
        divergence, lost = only(found)
        assert (divergence.cause, divergence.kind, divergence.index) == (Cause.VARIABLE, "messages", 0)
        assert divergence.character == (len("You help ") if keep_text else 0)
        # Without texts, places are known to the sentence.
        assert lost == len(rules) + len(END + "user\n" + ("Question" if keep_text else ""))


def test_retrieved_text_in_front_of_the_instructions() -> None:
    rules = prose("stable", 20)
    bodies = [
        body([system(f"Context:\n{prose(name, 12)}\n{rules}"), user(prose(f"question{name}", 2))])
        for name in ("alpha", "bravo", "charlie")
    ]
    for found in see(bodies)[1:]:
        divergence, lost = only(found)
        assert (divergence.cause, divergence.kind, divergence.index) == (Cause.RETRIEVAL, "messages", 0)
        assert divergence.character == len("Context:\n")
        assert lost == len(rules) + len(END + "user\n" + "Question")


def test_retrieved_text_in_front_of_the_history() -> None:
    bodies = conversation(3, lambda turn: [system(prose("docs" + "abc"[turn], 20))])
    for turn, found in enumerate(see(bodies)[1:], 1):
        divergence, lost = only(found)
        assert (divergence.cause, divergence.index, divergence.role) == (Cause.RETRIEVAL, 0, "system")
        assert lost == size(*chat(turn))


def test_retrieved_text_in_a_message_of_its_own_ahead_of_the_history() -> None:
    rules = system(prose("stable", 10))
    first = body([rules, *chat(2)])
    later = body([rules, user(prose("docs", 20)), *chat(3)])
    divergence, lost = only(see([first, later])[1])
    assert (divergence.cause, divergence.index) == (Cause.RETRIEVAL, 1)
    assert lost == size(*chat(2))


def test_retrieval_last_loses_nothing() -> None:
    rules = system(prose("stable", 20))
    bodies = [
        body([rules, user(f"{prose(name, 12)}\n{prose(f'question{name}', 2)}")])
        for name in ("one", "two", "three")
    ]
    assert not any(see(bodies))


def test_examples_in_another_order() -> None:
    pairs = [[user(prose(f"ask{n}", 2)), assistant(prose(f"reply{n}", 2))] for n in "abcdef"]
    rules = system(prose("stable", 5))
    one = [message for pair in pairs for message in pair]
    other = [message for pair in pairs[::-1] for message in pair]
    bodies = [body([rules, *one, user(prose("first", 2))]), body([rules, *other, user(prose("second", 2))])]
    divergence, lost = only(see(bodies)[1])
    assert (divergence.cause, divergence.index) == (Cause.EXAMPLES, 1)
    assert lost == size(*one)


def test_examples_drawn_anew() -> None:
    pairs = [[user(prose(f"ask{n}", 2)), assistant(prose(f"reply{n}", 2))] for n in "abcdef"]
    rules = system(prose("stable", 5))
    one = [*pairs[0], *pairs[1], *pairs[2], *pairs[3], user(prose("first", 2))]
    other = [*pairs[0], *pairs[4], *pairs[2], *pairs[3], user(prose("second", 2))]
    divergence, lost = only(see([body([rules, *one]), body([rules, *other])])[1])
    assert (divergence.cause, divergence.index, divergence.role) == (Cause.EXAMPLES, 3, "user")
    assert lost == size(*pairs[2], *pairs[3]) + len("user\n")


def test_examples_in_the_system_prompt() -> None:
    samples = [f"Example: {prose(n, 1)}\nAnswer: {prose('reply' + n, 1)}\n" for n in ("one", "two", "three")]
    bodies = [
        body([system("You judge.\n" + "".join(order)), user(prose(name, 2))])
        for order, name in ((samples, "first"), (samples[::-1], "second"))
    ]
    divergence, lost = only(see(bodies)[1])
    assert (divergence.cause, divergence.index) == (Cause.EXAMPLES, 0)
    assert len("".join(samples[1:])) <= lost <= len("".join(samples) + END + "user\n")


def test_a_sliding_window() -> None:
    rules = system(prose("stable", 10))
    history = chat(12)
    bodies = [body([rules, *history[2 * turn : 2 * turn + 9]]) for turn in range(7)]
    found = see(bodies)
    for turn in range(1, 7):
        divergence, lost = only(found[turn])
        assert (divergence.cause, divergence.index, divergence.role) == (Cause.SLIDING_WINDOW, 1, "user")
        assert divergence.at_bytes == size(rules)
        assert lost == size(*history[2 * turn : 2 * turn + 7])


def test_one_clean_cut_is_told_and_is_no_fault() -> None:
    rules = system(prose("stable", 10))
    history = chat(20)
    bodies = [body([rules, *history[: 2 * turn + 1]]) for turn in range(10)]
    bodies += [body([rules, *history[10 : 2 * turn + 1]]) for turn in range(10, 20)]
    found = see(bodies)
    assert [turn for turn, lost in enumerate(found) if lost] == [10]
    divergence, lost = only(found[10])
    assert divergence.cause is Cause.COMPACTION
    assert lost == size(*history[10:19])


def test_one_clean_summary() -> None:
    rules = system(prose("stable", 10))
    history = chat(20)
    summary = user(prose("summary", 6))
    bodies = [body([rules, *history[: 2 * turn + 1]]) for turn in range(10)]
    bodies += [body([rules, summary, *history[15 : 2 * turn + 1]]) for turn in range(10, 20)]
    found = see(bodies)
    assert [turn for turn, lost in enumerate(found) if lost] == [10]
    divergence, lost = only(found[10])
    assert (divergence.cause, divergence.index) == (Cause.COMPACTION, 1)
    assert lost == size(*history[15:19])


def test_a_new_summary_every_turn() -> None:
    rules = system(prose("stable", 10))
    history = chat(20)
    bodies = [body([rules, *history[: 2 * turn + 1]]) for turn in range(6)]
    bodies += [
        body(
            [
                rules,
                user(prose("summary" + "abcdefghijklmnop"[turn], 6)),
                *history[2 * turn - 7 : 2 * turn + 1],
            ]
        )
        for turn in range(6, 14)
    ]
    found = see(bodies)
    assert [bool(lost) for lost in found] == [False] * 6 + [True] * 8
    assert only(found[6])[0].cause is Cause.COMPACTION
    for turn in range(7, 14):
        divergence, lost = only(found[turn])
        assert (divergence.cause, divergence.index) == (Cause.ROLLING_COMPACTION, 1)
        assert lost == size(*history[2 * turn - 7 : 2 * turn - 1])


def test_an_earlier_message_rewritten() -> None:
    rules = system(prose("stable", 10))
    history = chat(4)
    with_thoughts = [*history[:-1]]
    with_thoughts[1] = assistant(prose("thoughts", 6) + with_thoughts[1]["content"])
    divergence, lost = only(see([body([rules, *with_thoughts[:5]]), body([rules, *history])])[1])
    assert (divergence.cause, divergence.index, divergence.role) == (Cause.REWRITTEN, 2, "assistant")
    # The answer itself is in both; so are the messages behind it.
    assert lost >= size(*history[2:5])


def test_retrieved_text_left_out_of_the_history() -> None:
    rules, history = system(prose("stable", 10)), chat(5)
    first = [rules, *history[:4], user(prose("docs", 9)), history[4]]
    later = [rules, *history[:5], *history[5:8], user(prose("other", 9)), history[8]]
    divergence, lost = only(see([body(first), body(later)])[1])
    assert (divergence.cause, divergence.index) == (Cause.REWRITTEN, 5)
    assert lost == size(history[4])


@pytest.mark.parametrize(
    ("one", "other", "detail"),
    [
        ({"cache_salt": "a"}, {"cache_salt": "b"}, "cache_salt"),
        ({"cache_salt": "a"}, {}, "cache_salt"),
        ({"lora_request": {"name": "x"}}, {"lora_request": {"name": "y"}}, "lora_request"),
        ({"model": "m1"}, {"model": "m2"}, "model"),
    ],
)
def test_equal_text_under_another_key(one: dict[str, Any], other: dict[str, Any], detail: str) -> None:
    rules = system(prose("stable", 10))
    messages = [rules, *chat(2)]
    found = see([body(messages, **one), body(messages, **other), body(messages, **other)])
    divergence, lost = only(found[1])
    assert (divergence.cause, divergence.detail) == (Cause.KEYS, detail)
    assert lost == size(*messages)
    # Under the same key it is found.
    assert found[2] == []


def test_two_faults_are_told_apart_and_add_up() -> None:
    """A date in the system prompt, and a window: mending the date alone would not bring the history back."""
    history = chat(12)
    tail = ".\n" + prose("rules", 20)
    bodies = [
        body([system(f"It is {turn:02}:15{tail}"), *history[2 * turn : 2 * turn + 9]]) for turn in range(4)
    ]
    for turn, lost in enumerate(see(bodies)[1:], 1):
        (date, by_date), (window, by_window) = lost
        assert (date.cause, window.cause) == (Cause.DATE, Cause.SLIDING_WINDOW)
        assert by_date == len(tail + END)
        assert by_window == size(*history[2 * turn : 2 * turn + 7])


def test_anthropic_bodies() -> None:
    """A billing line in a block of its own, as some clients send; tools first, then system, then messages."""
    rules = prose("rules", 20)

    def made(turn: int) -> dict[str, Any]:
        blocks = [
            {"type": "text", "text": f"billing: v2.1; id=7f3a9b{turn}c4d2e1"},
            {"type": "text", "text": rules, "cache_control": {"type": "ephemeral"}},
        ]
        messages = [
            {"role": one["role"], "content": [{"type": "text", "text": one["content"]}]}
            for one in chat(turn + 1)
        ]
        messages[-1]["content"][0]["cache_control"] = {"type": "ephemeral"}
        return {
            "model": "m",
            "system": blocks,
            "messages": messages,
            "tools": [{"name": "read", "input_schema": {}}],
        }

    for turn, found in enumerate(see(made(turn) for turn in range(3))):
        if turn == 0:
            continue
        divergence, lost = only(found)
        assert (divergence.cause, divergence.kind, divergence.index) == (Cause.IDENTIFIER, "system", 0)
        assert divergence.character == len("billing: v2.1; id=")
        assert lost == size(system(rules), *chat(turn)) + len(END)


def test_ids_of_tool_calls_are_no_layout() -> None:
    def made(turn: int) -> dict[str, Any]:
        call = {
            "id": f"call_{turn}9f8e7d",
            "type": "function",
            "function": {"name": "read", "arguments": "{}"},
        }
        messages = [
            *chat(1),
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"call_{turn}9f8e7d", "content": prose("result", 4)},
        ]
        return body([*messages, *chat(turn, "more")])

    assert not any(see(made(turn) for turn in range(1, 4)))


def test_text_completions() -> None:
    rules = "\n\n".join(prose(name, 3) for name in ("one", "two", "three"))
    bodies = [
        {"model": "m", "prompt": f"Date: 2024-05-0{day}\n\n{rules}\n\n{prose('q' + str(day), 2)}"}
        for day in (1, 2)
    ]
    divergence, lost = only(see(bodies)[1])
    assert (divergence.cause, divergence.kind, divergence.character) == (Cause.DATE, "prompt", len("Date: "))
    assert lost >= len(rules)


def compact(value: dict[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"))


@pytest.mark.parametrize(("every", "cause"), [(6, Cause.COMPACTION), (3, Cause.ROLLING_COMPACTION)])
def test_summaries_are_judged_by_how_often_they_come(every: int, cause: Cause) -> None:
    rules = system(prose("stable", 10))
    history = chat(24)
    bodies = []
    start, summary = 0, []
    for turn in range(24):
        if turn > every and turn % every == 0:
            start, summary = 2 * turn - 3, [user(prose("summary" + "abcdefghijklmnopqrstuvwxyz"[turn], 6))]
        bodies.append(body([rules, *summary, *history[start : 2 * turn + 1]]))
    found = [lost for lost in see(bodies) if lost]
    assert len(found) >= 2
    # The first of them could still be the only one.
    assert only(found[0])[0].cause is Cause.COMPACTION
    assert {only(lost)[0].cause for lost in found[1:]} == {cause}


def test_what_another_prompt_brought_is_not_lost() -> None:
    """The date of this turn was in another conversation's prompt, so that the system text is found."""
    tail = ".\n" + prose("rules", 20)
    early, late = system("It is 12:01" + tail), system("It is 12:02" + tail)
    bodies = [body([early, *chat(2, "one")]), body([late, *chat(1, "two")]), body([late, *chat(3, "one")])]
    divergence, lost = only(see(bodies)[2])
    assert divergence.cause is Cause.DATE
    # But for the first letters of the question, which were found, too, and the five of the time.
    assert lost == size(*chat(2, "one")) - len("user\nQuestion") - len("12:02")
