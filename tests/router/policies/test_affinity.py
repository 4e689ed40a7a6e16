"""affinity: conversations stay, hot prefixes spread, load and digests are weighed in seconds."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from router.placement.ask import Ask
from router.placement.policy import Policy
from router.placement.view import FleetView, LoadView
from router.policies import load_policy
from tests.router.views import Turn, ask_for, changed, digest_of, fleet_of, interleaved_chats, names_of


def _drive(policy: Policy, turns: list[Turn], fleet: FleetView, start: float = 0.0) -> list[str]:
    """Serve the turns on an idle fleet, one a second; return who served each."""
    served = []
    for number, turn in enumerate(turns):
        now = start + number
        choice = policy.rank(turn.ask, fleet, now)[0]
        policy.commit(turn.ask, choice, now)
        served.append(choice.name)
    return served


def _kept(turns: list[Turn], served: list[str]) -> float:
    """The share of turns, from the second on, that went where the one before went."""
    last: dict[int, str] = {}
    kept = []
    for turn, name in zip(turns, served, strict=True):
        if turn.conversation in last:
            kept.append(last[turn.conversation] == name)
        last[turn.conversation] = name
    return sum(kept) / len(kept)


@pytest.mark.parametrize(
    ("replicas", "new_tokens"), [(3, 40), (3, 120), (3, 400), (16, 40), (16, 120), (16, 400), (64, 40)]
)
@pytest.mark.parametrize("preamble", [True, False], ids=["chat", "plain"])
def test_conversations_keep_their_home(replicas: int, new_tokens: int, preamble: bool) -> None:
    turns = list(interleaved_chats(100, 10, new_tokens, preamble=preamble))
    fleet = fleet_of(names_of(replicas))
    served = _drive(load_policy("affinity"), turns, fleet)
    assert _kept(turns, served) >= 0.98
    first = Counter(name for turn, name in zip(turns, served, strict=True) if turn.number == 0)
    # And they spread: the shared system prompt draws them to no single replica.
    assert max(first.values()) <= max(0.5 * 100, 100 / replicas * 4)


@pytest.mark.parametrize("replicas", [3, 16])
@pytest.mark.parametrize("new_tokens", [40, 120])
def test_routers_agree_without_sharing_anything(replicas: int, new_tokens: int) -> None:
    """Each sees every other request of 100 conversations; a third starts in the middle."""
    turns = list(interleaved_chats(100, 10, new_tokens))
    fleet = fleet_of(names_of(replicas))
    alone = _drive(load_policy("affinity"), turns, fleet)
    halves = [load_policy("affinity"), load_policy("affinity")]
    served, late, restarted = [], load_policy("affinity"), []
    for number, turn in enumerate(turns):
        policy = halves[number % 2]
        choice = policy.rank(turn.ask, fleet, float(number))[0]
        policy.commit(turn.ask, choice, float(number))
        served.append(choice.name)
        if number >= 500:
            restarted.append(late.rank(turn.ask, fleet, float(number))[0].name)
            late.commit(turn.ask, late.rank(turn.ask, fleet, float(number))[0], float(number))
    agree = sum(a == b for a, b in zip(alone, served, strict=True)) / len(turns)
    assert agree >= 0.99
    assert restarted == alone[500:]


def test_turns_and_routers_agree_where_the_shared_part_ends_between_boundaries() -> None:
    """A long system prompt, of 70 blocks and a bit: beyond the depth where digests know every block."""
    turns = list(interleaved_chats(60, 5, 300, system_tokens=1_125, preamble=False))
    fleet = fleet_of(names_of(8))
    renewed = changed(fleet, [replace(one, epoch="new:" + one.name) for one in fleet.replicas])
    seasoned, other = load_policy("affinity"), load_policy("affinity")
    homes: dict[int, set[str]] = {}
    agree = []
    for number, turn in enumerate(turns):
        for policy in (seasoned, other) if number < 100 else (seasoned,):
            policy.commit(turn.ask, policy.rank(turn.ask, fleet, float(number))[0], float(number))
        if number >= 100:
            # All replicas began anew, as the other sees them: only the key tells it where to go.
            first = seasoned.rank(turn.ask, fleet, float(number))[0].name
            agree.append(first == other.rank(turn.ask, renewed, float(number))[0].name)
            homes.setdefault(turn.conversation, set()).add(first)
    # The first few conversations stay where they began, before the shared part was known to be hot.
    assert sum(agree) / len(agree) >= 0.85
    assert len(set.union(*homes.values())) == 8
    assert sum(len(names) == 1 for names in homes.values()) >= 0.95 * len(homes)


def test_a_lone_chat_stays_though_all_traffic_is_its_own() -> None:
    turns = list(interleaved_chats(1, 60, 40))
    assert _kept(turns, _drive(load_policy("affinity"), turns, fleet_of(names_of(3)))) == 1.0


def test_conversations_that_all_begin_alike_spread_once_it_is_seen() -> None:
    """A hot prefix of plain text, with no structure to tell where it ends, and not on a block's border."""
    policy = load_policy("affinity")
    fleet = fleet_of(names_of(8))
    turns = list(interleaved_chats(200, 1, 50, system_tokens=2_005, preamble=False))
    served = _drive(policy, turns, fleet)
    assert max(Counter(served[40:]).values()) <= 160 / 8 * 2


def test_rare_prefixes_gather() -> None:
    """40 system prompts over 4 replicas, none hot: each is computed on one replica, not on four."""
    policy = load_policy("affinity")
    fleet = fleet_of(names_of(4))
    draw = random.Random(2)
    systems = [[draw.randrange(50_000) for _ in range(640)] for _ in range(40)]
    homes: dict[int, set[str]] = {}
    for number in range(800):
        which = number % 40
        ask = ask_for(systems[which] + [draw.randrange(50_000) for _ in range(60)])
        choice = policy.rank(ask, fleet, float(number))[0]
        policy.commit(ask, choice, float(number))
        if number >= 80:
            homes.setdefault(which, set()).add(choice.name)
    assert sum(len(names) == 1 for names in homes.values()) >= 38


def test_waiting_is_weighed_against_computing() -> None:
    policy = load_policy("affinity")
    draw = random.Random(0)
    ask = ask_for([draw.randrange(50_000) for _ in range(4000)])
    idle = fleet_of(names_of(3))
    home = policy.rank(ask, idle, 0.0)[0]
    policy.commit(ask, home, 0.0)
    # S(4000, 0) is about 0.43 s: a short queue at home is worth waiting for, a long one is not.
    for work, stays in ((0.2, True), (2.0, False)):
        fleet = fleet_of(names_of(3), **{home.name: LoadView(work_seconds=work, reported_at=1.0)})
        assert (policy.rank(ask, fleet, 1.0)[0].name == home.name) is stays
    # Time passes: what was queued is done.
    fleet = fleet_of(names_of(3), **{home.name: LoadView(work_seconds=2.0, reported_at=1.0)})
    assert policy.rank(ask, fleet, 3.5)[0].name == home.name


def _with_digests(fleet: FleetView, asks: dict[str, list[Ask]], at: float) -> FleetView:
    """The fleet with a digest for each replica, made at `at`, of the prompts it holds."""
    digests = {one.name: digest_of(asks.get(one.name, []), one.epoch) for one in fleet.replicas}
    return changed(fleet, digests=digests, at=at)


def test_a_conversation_that_spilled_goes_on_where_its_cache_is() -> None:
    policy = load_policy("affinity")
    first, second = (turn.ask for turn in interleaved_chats(1, 2, 2000))
    idle = _with_digests(fleet_of(names_of(3)), {}, at=0.0)
    home = policy.rank(first, idle, 0.0)[0]
    loads = {home.name: LoadView(work_seconds=9.0, reported_at=0.0)}
    busy = _with_digests(fleet_of(names_of(3), **loads), {}, at=0.0)
    spilled = policy.rank(first, busy, 0.0)[0]
    assert spilled.name != home.name
    policy.commit(first, spilled, 0.0)
    # The digests do not know of it yet; this router does, and others will.
    ranking = policy.rank(second, idle, 4.0)
    assert ranking[0].name == spilled.name
    assert ranking[0].expected_tokens > 2000
    # Long after, a digest that does not hold it is believed: it was evicted.
    assert policy.rank(second, _with_digests(idle, {}, at=20.0), 20.0)[0].name == home.name
    # Without digests all go back to the ring, or routers that share a chat would never agree again.
    assert policy.rank(second, fleet_of(names_of(3)), 20.0)[0].name == home.name


def test_a_digest_sends_a_request_where_its_prefix_is() -> None:
    first, second = (turn.ask for turn in interleaved_chats(1, 2, 2000))
    fleet = fleet_of(names_of(4))
    home = load_policy("affinity").rank(second, fleet, 0.0)[0].name
    holder = next(name for name in names_of(4) if name != home)
    digests = {name: digest_of([first] if name == holder else [], f"{name}:0") for name in names_of(4)}
    with_digests = changed(fleet, digests=digests, at=90.0)
    policy = load_policy("affinity")
    best = policy.rank(second, with_digests, 100.0)[0]
    assert best.name == holder
    assert best.expected_tokens == 2048  # the deepest boundary within the 2,304 tokens it holds
    # A stale digest, one of another chain, and one of an earlier life are as none at all.
    assert policy.rank(second, with_digests, 130.0)[0].name == home
    for void_digest in (
        replace(digests[holder], identity="other"),
        replace(digests[holder], epoch="earlier"),
    ):
        digests[holder] = void_digest
        void = changed(fleet, digests=digests, at=90.0)
        assert policy.rank(second, void, 100.0)[0].name == home
    # And the option turns them off.
    assert load_policy("affinity", {"use_digests": False}).rank(second, with_digests, 100.0)[0].name == home


def test_a_restarted_replica_keeps_its_home_and_loses_its_credit() -> None:
    policy = load_policy("affinity")
    first, second = (turn.ask for turn in interleaved_chats(1, 2, 600))
    fleet = fleet_of(names_of(3))
    home = policy.rank(first, fleet, 0.0)[0]
    policy.commit(first, home, 0.0)
    assert policy.rank(second, fleet, 1.0)[0].expected_tokens > 500
    renewed = changed(fleet, [replace(one, epoch=f"{one.name}:1") for one in fleet.replicas])
    after = policy.rank(second, renewed, 1.0)[0]
    assert (after.name, after.expected_tokens) == (home.name, 0)


def test_a_replica_that_holds_the_system_prompt_does_not_draw_all_chats() -> None:
    """Idle, with digests: one replica served first, and still new chats go to their own homes."""
    turns = list(interleaved_chats(60, 1, 60, system_tokens=600))
    fleet = _with_digests(fleet_of(names_of(4)), {"replica-2": [turns[0].ask]}, at=0.0)
    policy = load_policy("affinity")
    served: Counter[str] = Counter()
    for turn in turns:
        choice = policy.rank(turn.ask, fleet, 10.0)[0]
        policy.commit(turn.ask, choice, 10.0)
        served[choice.name] += 1
    assert len(served) == 4
    assert max(served.values()) <= 30


def test_new_chats_begin_where_least_is_going_on_and_old_ones_stay() -> None:
    """Nobody waits, but one replica decodes many answers: only a digest lets a chat begin away from home."""
    policy = load_policy("affinity")
    turns = [turn.ask for turn in interleaved_chats(1, 2, 300)]
    home = policy.rank(turns[0], fleet_of(names_of(3)), 0.0)[0].name
    plain = fleet_of(names_of(3), **{home: LoadView(in_flight=9)})
    assert policy.rank(turns[0], plain, 0.0)[0].name == home
    told = _with_digests(plain, {}, at=0.0)
    assert policy.rank(turns[0], told, 0.0)[0].name != home
    holding = _with_digests(plain, {home: [turns[0]]}, at=0.0)
    assert policy.rank(turns[1], holding, 0.0)[0].name == home
    idle = _with_digests(fleet_of(names_of(3)), {}, at=0.0)
    assert policy.rank(turns[0], idle, 0.0)[0].name == home


def test_homes_stay_when_others_die() -> None:
    """Four system prompts, too long to be copied, each with a fair share of the traffic."""
    policy = load_policy("affinity")
    draw = random.Random(12)
    systems = [[draw.randrange(50_000) for _ in range(2000)] for _ in range(4)]
    fleet = fleet_of(names_of(5))
    for number in range(200):
        ask = ask_for(systems[number % 4] + [draw.randrange(50_000) for _ in range(64)], 2000)
        policy.commit(ask, policy.rank(ask, fleet, float(number))[0], float(number))
    left = FleetView.of(fleet.replicas[:3], fleet.ring, 5)
    alive = {replica.name for replica in left.replicas}
    for number in range(100):
        ask = ask_for(systems[number % 4] + [draw.randrange(50_000) for _ in range(64)], 2000)
        before = policy.rank(ask, fleet, 200.0)[0].name
        if before in alive:
            assert policy.rank(ask, left, 200.0)[0].name == before


@pytest.mark.parametrize("apps", [10, 100])
@pytest.mark.parametrize("replicas", [3, 16])
@pytest.mark.parametrize("system_tokens", [300, 2000])
def test_a_fresh_router_places_as_one_that_has_watched(apps: int, replicas: int, system_tokens: int) -> None:
    """Many applications, each with a system prompt of its own, small ones and large ones."""
    draw = random.Random(13)
    systems = [[draw.randrange(50_000) for _ in range(system_tokens)] for _ in range(apps)]
    fleet = fleet_of(names_of(replicas))

    def chat(number: int) -> Ask:
        own = random.Random(number)
        return ask_for(systems[number % apps] + [own.randrange(50_000) for _ in range(50)], system_tokens)

    seasoned, fresh = load_policy("affinity"), load_policy("affinity")
    for number in range(300):
        seasoned.commit(chat(number), seasoned.rank(chat(number), fleet, float(number))[0], float(number))
    agree = 0
    for number in range(300, 500):
        choices = [policy.rank(chat(number), fleet, float(number))[0] for policy in (seasoned, fresh)]
        agree += choices[0].name == choices[1].name
        fresh.commit(chat(number), choices[1], float(number))
        seasoned.commit(chat(number), choices[0], float(number))
    # A large prompt that is hot must first be seen to be, in five conversations of each application.
    learning = system_tokens > 1024 and apps <= replicas
    assert agree / 200 >= (0.5 if learning else 0.99)


def test_adding_a_replica_moves_only_its_share() -> None:
    draw = random.Random(4)
    asks = [ask_for([draw.randrange(50_000) for _ in range(64)]) for _ in range(1500)]

    def place(names: list[str]) -> list[str]:
        policy = load_policy("affinity")
        return [policy.rank(ask, fleet_of(names), 0.0)[0].name for ask in asks]

    before, after = place(names_of(4)), place(names_of(5))
    moved = [new for old, new in zip(before, after, strict=True) if old != new]
    assert 0.12 <= len(moved) / len(asks) <= 0.28
    assert set(moved) == {"replica-4"}
    assert place(names_of(4)) == before
    assert max(Counter(before).values()) <= 1.25 * len(asks) / 4


def test_a_dead_replica_leaves_the_rest_in_order() -> None:
    draw = random.Random(6)
    fleet = fleet_of(names_of(5))
    without = changed(fleet, [r for r in fleet.replicas if r.name != "replica-2"])
    for _ in range(200):
        ask = ask_for([draw.randrange(50_000) for _ in range(64)])
        policy = load_policy("affinity")
        best = policy.rank(ask, fleet, 0.0)[0].name
        if best != "replica-2":
            assert policy.rank(ask, without, 0.0)[0].name == best


def test_a_burst_spreads_by_what_was_dispatched() -> None:
    """64 prompts within one poll: what this router sent counts, though no report tells of it yet."""
    policy = load_policy("affinity")
    draw = random.Random(8)
    own = dict.fromkeys(names_of(4), 0.0)
    served: Counter[str] = Counter()
    for _ in range(64):
        ask = ask_for([draw.randrange(50_000) for _ in range(2000)])
        fleet = fleet_of(names_of(4), **{name: LoadView(own_work_seconds=work) for name, work in own.items()})
        choice = policy.rank(ask, fleet, 0.0)[0]
        policy.commit(ask, choice, 0.0)
        own[choice.name] += choice.prefill_seconds
        served[choice.name] += 1
    assert max(served.values()) <= 1.5 * 16


def test_a_block_that_matches_behind_another_text_earns_nothing() -> None:
    policy = load_policy("affinity", {"use_digests": False})
    draw = random.Random(9)
    x, y = ([draw.randrange(50_000) for _ in range(480)] for _ in range(2))
    fleet = fleet_of(names_of(4))
    for prompt in (x, y):
        ask = ask_for(prompt)
        policy.commit(ask, policy.rank(ask, fleet, 0.0)[0], 0.0)
    expected = {choice.name: choice.expected_tokens for choice in policy.rank(ask_for(y + x), fleet, 1.0)}
    assert max(expected.values()) == 480
    changed = [x[0] + 1, *x[1:]]
    assert max(choice.expected_tokens for choice in policy.rank(ask_for(changed), fleet, 1.0)) == 0
