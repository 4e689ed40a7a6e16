"""chwbl: the ring by the prompt's first characters, spilling where a replica is over the bound."""

from __future__ import annotations

from router.placement.view import LoadView
from router.policies import load_policy
from tests.router.views import ask_for, fleet_of, interleaved_chats, names_of

NAMES = names_of(4)


def _ranked(tokens: list[int], **loads: int) -> list[str]:
    views = {f"replica-{name.removeprefix('r')}": LoadView(in_flight=count) for name, count in loads.items()}
    ranking = load_policy("chwbl").rank(ask_for(tokens), fleet_of(NAMES, **views), 0.0)
    return [choice.name for choice in ranking]


def test_only_the_first_characters_count() -> None:
    start = list(range(16))
    assert len({tuple(_ranked([*start, *range(number, number + 99)])) for number in range(20)}) == 1
    assert len({tuple(_ranked([number, *start[1:]])) for number in range(20)}) > 4


def test_it_spills_past_the_bound_to_the_rings_next_and_not_to_the_idlest() -> None:
    home, second, third, last = (name.removeprefix("replica-") for name in _ranked([5] * 40))
    # 12 in flight of 4 replicas: 1.25 * 13 / 4 = 4.06, so that one with four is full.
    under = {f"r{home}": 3, f"r{second}": 3, f"r{third}": 3, f"r{last}": 3}
    assert _ranked([5] * 40, **under)[0] == f"replica-{home}"
    over = {f"r{home}": 5, f"r{second}": 3, f"r{third}": 3, f"r{last}": 1}
    assert _ranked([5] * 40, **over)[0] == f"replica-{second}"
    both = {f"r{home}": 5, f"r{second}": 4, f"r{third}": 2, f"r{last}": 1}
    assert _ranked([5] * 40, **both) == [f"replica-{place}" for place in (third, last, home, second)]


def test_where_all_are_over_the_bound_the_home_takes_it() -> None:
    # One each: 1.25 * 5 / 4 = 1.56 is under two for all.
    order = _ranked([5] * 40)
    assert _ranked([5] * 40, r0=1, r1=1, r2=1, r3=1) == order


def test_a_chats_turns_share_a_home_and_chats_of_one_system_prompt_do_not() -> None:
    policy = load_policy("chwbl")
    homes: dict[int, set[str]] = {}
    for turn in interleaved_chats(20, 4, 40):
        choice = policy.rank(turn.ask, fleet_of(NAMES), 0.0)[0]
        homes.setdefault(turn.conversation, set()).add(choice.name)
    assert all(len(names) == 1 for names in homes.values())
    assert len(set.union(*homes.values())) == 4
