"""Hand-over: what is hot goes on, each prefix once, and only from a replica that goes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from replica.handover import HandoverDesk, hot_prefixes
from tests.replica.conftest import Client, Launch
from tests.replica.drives import BLOCK, Drive

SYSTEM = list(range(1000, 1000 + 4 * BLOCK))


def wholes(tokens: Sequence[int]) -> list[int]:
    """The full blocks of some tokens."""
    return list(tokens[: len(tokens) // BLOCK * BLOCK])


def talk(drive: Drive, start: Sequence[int], turns: int, salt: str | None = None) -> list[int]:
    """Have a conversation; return what the cache holds of it at its end."""
    history = list(start)
    for turn in range(turns):
        history += [7_000 + turn] * BLOCK
        _, answer = drive.run(history, max_tokens=2 * BLOCK, salt=salt)
        history += answer
    # The last token sampled is never computed.
    return wholes(history[:-1])


def given(drive: Drive, limit: int = 100, tokens: int = 10_000) -> list[tuple[list[int], int]]:
    """Hand over at a desk that has given nothing yet."""
    prefixes = HandoverDesk().give(drive.pool, limit, tokens).prefixes
    return [(prefix["tokens"], prefix["hits"]) for prefix in prefixes]  # type: ignore[misc]


def test_what_was_asked_once_is_not_hot() -> None:
    drive = Drive(block_count=200)
    talk(drive, SYSTEM, turns=1)
    assert given(drive) == []


def test_a_conversation_is_given_to_its_newest_tail_with_all_its_hits() -> None:
    drive = Drive(block_count=200)
    held = talk(drive, [], turns=4)
    assert given(drive) == [(held, 3)]


def test_what_many_share_is_given_apart_from_what_each_went_on_with() -> None:
    drive = Drive(block_count=400)
    for asker in range(5):
        drive.run([*SYSTEM, *[asker] * BLOCK], max_tokens=2)
    held = talk(drive, [*SYSTEM, *[77] * BLOCK], turns=3)
    # All askers but the first found the system prompt; 4 blocks five times are worth less than 14 twice.
    assert given(drive) == [(held, 2), (SYSTEM, 5)]


def test_what_many_share_is_given_without_what_one_of_them_asked() -> None:
    drive = Drive(block_count=400)
    for asker in range(5):
        drive.run([*SYSTEM, *[asker] * 3 * BLOCK], max_tokens=2)
    assert given(drive) == [(SYSTEM, 4)]


def test_branches_are_given_each() -> None:
    drive = Drive(block_count=400)
    held = talk(drive, [], turns=2)
    left = talk(drive, [*held, *[1] * BLOCK], turns=2)
    right = talk(drive, [*held, *[2] * BLOCK], turns=2)
    prefixes = [tokens for tokens, _ in given(drive)]
    assert left in prefixes
    assert right in prefixes


def test_the_hottest_come_first_by_hits_times_tokens() -> None:
    drive = Drive(block_count=400)
    short, long = [1] * 2 * BLOCK, [2] * 8 * BLOCK
    for _ in range(3):
        drive.run([*short, 5], max_tokens=1)
    for _ in range(2):
        drive.run([*long, 5], max_tokens=1)
    assert given(drive) == [(long, 1), (short, 2)]
    for _ in range(4):
        drive.run([*short, 5], max_tokens=1)
    assert given(drive) == [(short, 6), (long, 1)]


def test_what_was_found_long_ago_counts_for_less() -> None:
    drive = Drive(block_count=400)
    for prompt in ([1] * 2 * BLOCK, [2] * 4 * BLOCK):
        for _ in range(2):
            drive.run([*prompt, 5], max_tokens=1)
    short, long = sorted(hot_prefixes(drive.pool.named), key=lambda prefix: prefix.tail.depth)
    now = short.hit_at
    assert short.heat(now) == pytest.approx(
        long.heat(now + 600) * short.tail.depth * 2 / long.tail.depth, rel=1e-3
    )
    assert long.heat(now + 1200) < short.heat(now) < long.heat(now)


def test_each_is_given_once_within_the_bounds() -> None:
    drive = Drive(block_count=400)
    prompts = [[number] * number * BLOCK for number in (2, 3, 5, 8)]
    for prompt in prompts:
        for _ in range(2):
            drive.run([*prompt, 5], max_tokens=1)
    desk = HandoverDesk()
    first = desk.give(drive.pool, 1, 1000)
    assert [one["tokens"] for one in first.prefixes] == [prompts[3]]
    assert first.left == 3
    # The longest left does not fit, and stays for who takes more.
    second = desk.give(drive.pool, 10, 4 * BLOCK)
    assert [one["tokens"] for one in second.prefixes] == [prompts[1]]
    assert second.left == 2
    third = desk.give(drive.pool, 10, 1000)
    assert [one["tokens"] for one in third.prefixes] == [prompts[2], prompts[0]]
    assert third.left == 0
    assert desk.give(drive.pool, 10, 1000).prefixes == []
    assert desk.given_count == 4


def test_salts_go_with_their_prefixes() -> None:
    drive = Drive(block_count=400)
    for salt in ("a", None, "b"):
        talk(drive, SYSTEM, turns=2, salt=salt)
    prefixes = HandoverDesk().give(drive.pool, 10, 10_000).prefixes
    assert {one["salt"] for one in prefixes} == {"a", None, "b"}


def test_a_twin_inherits_the_hits_of_the_block_it_replaces() -> None:
    drive = Drive(block_count=20)
    prompt = [3] * 2 * BLOCK
    # Computed by two at once, so that there are two of each block; one of them is held to the end.
    first = drive.add([*prompt, 1], max_tokens=1)
    drive.add([*prompt, 2], max_tokens=50)
    while first not in drive.finished:
        drive.step()
    third = drive.add([*prompt, 3], max_tokens=1)
    while third not in drive.finished:
        drive.step()
    assert drive.sequences[third].cached_tokens == len(prompt)
    assert drive.pool.take(drive.pool.free_count)
    ((tokens, hits),) = given(drive)
    assert (tokens[: len(prompt)], hits) == (prompt, 1)


def test_what_is_evicted_is_not_given() -> None:
    drive = Drive(block_count=12)
    talk(drive, [], turns=2)
    assert given(drive)
    # Its blocks hold something else now, which nobody has asked for twice.
    drive.run([9] * 11 * BLOCK, max_tokens=1)
    assert given(drive) == []


async def warm(client: Client) -> list[int]:
    """Have a prefix found once; return it."""
    prompt = list(range(64))
    for tail in (1, 2):
        await client.complete([*prompt, tail], max_tokens=1, cache_salt="tenant")
    return prompt


async def test_only_a_replica_that_goes_hands_over(launch: Launch) -> None:
    client = await launch(linger_seconds=1)
    prompt = await warm(client)
    refused = await client.http.post("/handover")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "not_draining")
    draining = asyncio.create_task(client.replica.drain())
    await client.until(lambda state: state["draining"])
    assert (await client.http.post("/handover?limit=1&tokens=63")).json() == {"prefixes": [], "left": 1}
    answer = (await client.http.post("/handover?limit=1&tokens=64")).json()
    assert answer == {"prefixes": [{"tokens": prompt, "salt": "tenant", "hits": 1}], "left": 0}
    assert (await client.http.post("/handover")).json() == {"prefixes": [], "left": 0}
    assert "kvring_replica_handed_over_prefixes_total 1.0" in (await client.http.get("/metrics")).text
    await draining


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=-1", "limit=x", "tokens=1.5", "tokens=", "limit=" + "9" * 99]
)
async def test_bounds_that_are_none_are_refused(launch: Launch, query: str) -> None:
    client = await launch()
    client.replica.server.draining = True
    response = await client.http.post(f"/handover?{query}")
    assert response.status_code == 400
    assert response.json()["error"]["param"] in ("limit", "tokens")


async def test_bounds_beyond_ours_are_ours(launch: Launch) -> None:
    client = await launch()
    prompt = await warm(client)
    client.replica.server.draining = True
    answer = await client.http.post("/handover?limit=1000000000&tokens=100000000000")
    assert [one["tokens"] for one in answer.json()["prefixes"]] == [prompt]


async def test_what_is_handed_over_is_found_where_it_is_taken_in(launch: Launch) -> None:
    old, new = await launch(name="old"), await launch(name="new")
    chat: list[dict[str, str]] = [{"role": "user", "content": "a long question " * 20}]
    for _ in range(3):
        answer = (await old.chat(chat, max_tokens=40, cache_salt="tenant")).json()
        chat += [answer["choices"][0]["message"], {"role": "user", "content": "and then? " * 5}]
    old.replica.server.draining = True
    (prefix,) = (await old.http.post("/handover")).json()["prefixes"]
    taken = await new.http.post("/prefill", json={"tokens": prefix["tokens"], "salt": prefix["salt"]})
    assert taken.json() == {"computed_tokens": len(prefix["tokens"]), "cached_tokens": 0}
    assert await cached(new, chat, "other") == 0
    found = await cached(new, chat, "tenant")
    old.replica.server.draining = False
    assert found == await cached(old, chat, "tenant") > 100


async def cached(client: Client, chat: list[dict[str, str]], salt: str) -> int:
    """Ask, and return how many tokens were found."""
    usage = (await client.chat(chat, cache_salt=salt)).json()["usage"]
    tokens: int = usage["prompt_tokens_details"]["cached_tokens"]
    return tokens
