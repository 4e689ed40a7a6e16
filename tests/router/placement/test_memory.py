"""A router's memory, as its decisions show it: how deep a prompt is known, for how long, and in what room."""

from __future__ import annotations

from random import Random

import pytest

from loadgen.bench.held_bytes import held_bytes
from router.placement.ask import Choice
from router.placement.policy import Policy
from router.policies import load_policy
from tests.router.views import ask_for, fleet_of, names_of

FLEET = fleet_of(names_of(3))


def tokens(number: int, count: int) -> list[int]:
    draw = Random(number)
    return [draw.randrange(50_000) for _ in range(count)]


def affinity(**options: float) -> Policy:
    return load_policy("affinity", {"use_digests": False, **options})


def serve(policy: Policy, prompt: list[int], now: float) -> str:
    ask = ask_for(prompt)
    choice = policy.rank(ask, FLEET, now)[0]
    policy.commit(ask, choice, now)
    return choice.name


def known(policy: Policy, prompt: list[int], now: float) -> int:
    """How many tokens whoever served it last is expected to hold."""
    return max(choice.expected_tokens for choice in policy.rank(ask_for(prompt), FLEET, now))


@pytest.mark.parametrize("length", [16, 47, 160, 1000, 1040, 1601, 5000, 20_011])
def test_a_prompt_is_known_to_the_block_where_it_ended(length: int) -> None:
    policy = affinity()
    first = tokens(1, length)
    serve(policy, first, 1.0)
    assert known(policy, first + tokens(2, 600), 2.0) == length // 16 * 16
    # Of itself, one token is computed.
    assert known(policy, first, 2.0) == (length - 1) // 16 * 16
    assert known(policy, tokens(3, length), 2.0) == 0


def test_the_next_turn_is_known_deeper() -> None:
    policy = affinity()
    prompt = tokens(1, 500)
    for turn in range(10):
        assert known(policy, prompt, float(turn)) == (0 if turn == 0 else (len(prompt) - 333) // 16 * 16)
        serve(policy, prompt, float(turn))
        prompt = prompt + tokens(turn + 10, 333)


def test_what_two_prompts_share_is_found_by_a_third() -> None:
    policy = affinity()
    shared = tokens(1, 3003)
    for number in (2, 3):
        serve(policy, shared + tokens(number, 900), float(number))
    found = known(policy, shared + tokens(4, 900), 5.0)
    # Where two parted is known block by block, or nearly; less than a stride of digests is lost.
    assert 3003 - 512 < found <= 3003 // 16 * 16


def test_it_is_forgotten_after_its_time() -> None:
    policy = affinity(remember_seconds=100)
    prompt = tokens(1, 800)
    serve(policy, prompt, 10.0)
    assert known(policy, prompt, 109.0) == 784
    assert known(policy, prompt, 111.0) == 0
    # Being asked for keeps it.
    serve(policy, prompt, 100.0)
    assert known(policy, prompt, 190.0) == 784


def test_its_room_is_what_it_says_whatever_comes() -> None:
    policy = affinity(remember_names=640)
    before = held_bytes(policy)
    for number in range(300):
        serve(policy, tokens(number, 700), float(number))
    # The newest are known, the oldest made way.
    assert all(known(policy, tokens(number, 700), 300.0) > 500 for number in (298, 299))
    assert sum(known(policy, tokens(number, 700), 300.0) > 0 for number in range(200)) < 70
    assert held_bytes(policy) - before < 2000


def test_by_default_it_takes_under_four_mebibytes() -> None:
    policy = load_policy("affinity")
    for number in range(50):
        serve(policy, tokens(number, 700), float(number))
    assert 2**20 < held_bytes(policy) <= 4 * 2**20


def test_restarts_without_end_do_not_fill_memory() -> None:
    policy = load_policy("affinity")
    ask = ask_for(tokens(1, 800))
    for number in range(10_000):
        policy.commit(ask, Choice("replica-0", f"life {number}"), float(number) / 100)
    assert held_bytes(policy) <= 4 * 2**20
    assert known(policy, tokens(1, 800), 101.0) == 784


def test_it_works_for_years() -> None:
    policy = affinity()
    prompt = tokens(1, 800)
    for now in (0.0, 1e4, 1e6, 1e8, 3e9):
        serve(policy, prompt, now)
        assert known(policy, prompt, now + 1) == 784
        for number in range(5):
            serve(policy, prompt[:400] + tokens(number + 2, 400), now + number)
        assert known(policy, prompt, now + 10) == 784


def test_popularity_fades_however_long_it_has_run() -> None:
    policy = affinity(popularity_decay_seconds=10)
    for number in range(400):
        serve(policy, tokens(number, 100), 1e6)
    # Much later all that comes begins alike: that is hot, whatever there once was, and spreads.
    shared = tokens(1000, 1600)
    served = [serve(policy, shared + tokens(number, 100), 1e6 + 200) for number in range(2000, 2030)]
    assert len(set(served[-15:])) == 3


def test_a_shadow_remembers_for_itself() -> None:
    one, other = affinity(), affinity()
    serve(one, tokens(1, 800), 1.0)
    assert known(one, tokens(1, 800), 2.0) == 784
    assert known(other, tokens(1, 800), 2.0) == 0
