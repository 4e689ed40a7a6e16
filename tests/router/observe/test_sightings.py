"""What a router has seen, set against digests and membership, gives each cause its evidence."""

from __future__ import annotations

import random
from typing import Any

from loadgen.bench.held_bytes import held_bytes
from router.chain.keys import Keys
from router.observe.attribution import Evidence, Misses, attribute
from router.observe.sightings import Sightings
from router.placement.ask import Ask, Choice
from router.placement.ring import Ring
from router.placement.view import FleetView, ReplicaView
from tests.router.views import NAMER, ask_for, digest_of

NAMES = ("r0", "r1", "r2")


def prompt(length: int, seed: int = 1) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(50_000) for _ in range(length)]


def view(
    *names: str, epoch: str = "0", held: dict[str, list[Ask]] | None = None, at: float = 0.0
) -> FleetView:
    """A fleet of these replicas; `held` are the prompts in the digests, made `at`."""
    replicas = [ReplicaView(name, f"{name}:{epoch}") for name in names or NAMES]
    digests = {name: (digest_of(asks, f"{name}:{epoch}"), at) for name, asks in (held or {}).items()}
    return FleetView.of(replicas, Ring(NAMES), digests=digests)


def salted_ask(tokens: list[int], salt: str) -> Ask:
    return Ask("m", len(tokens), b"", NAMER.chain_of_tokens(tokens, Keys("m", salt=salt)))


def on(name: str, expected: int = 0, epoch: str = "0") -> Choice:
    return Choice(name, f"{name}:{epoch}", expected_tokens=expected)


def evidence(
    sightings: Sightings, ask: Ask, fleet: FleetView, choice: Choice, now: float = 10.0, **fields: Any
) -> Evidence:
    unreachable = fields.pop("unreachable", frozenset())
    told = {
        "prompt_tokens": ask.prompt_tokens,
        "block_tokens": 16,
        "hit_tokens": 0,
        "evicted_tokens": 0,
        "other_keys_tokens": 0,
        "scale": 1.0,
    } | fields
    return sightings.look(ask, fleet, now).evidence(choice, unreachable, **told)


def test_nothing_is_known_of_a_new_prompt() -> None:
    found = evidence(Sightings(), ask_for(prompt(100)), view(), on("r0"))
    assert found == Evidence(100, 16, 0, evicted=0)
    assert attribute(found) == Misses(partial_block=4, cold=96)


def test_what_another_replica_computed_was_to_be_had_there() -> None:
    sightings = Sightings()
    sightings.note(ask_for(prompt(100)), on("r1"), 1.0)
    longer = ask_for(prompt(200))
    assert evidence(sightings, longer, view(), on("r0")).held_elsewhere == 96
    # On the replica that computed it, there is nobody else.
    assert evidence(sightings, longer, view(), on("r1")).held_elsewhere == 0


def test_prompts_are_known_to_their_last_block_between_the_boundaries_too() -> None:
    sightings = Sightings()
    sightings.note(ask_for(prompt(3000)), on("r1"), 1.0)
    found = evidence(sightings, ask_for(prompt(5000)), view(), on("r0"))
    assert (found.held_elsewhere, found.seen) == (2992, 2992)


def test_a_digest_made_later_tells_that_it_is_gone() -> None:
    sightings, short, longer = Sightings(), ask_for(prompt(100)), ask_for(prompt(200))
    sightings.note(short, on("r1"), 1.0)
    before = view(held={"r1": []}, at=0.5)
    assert evidence(sightings, longer, before, on("r0")).held_elsewhere == 96
    since = view(held={"r1": []}, at=2.0)
    found = evidence(sightings, longer, since, on("r0"), evicted_tokens=None)
    assert (found.held_elsewhere, found.evicted, found.seen) == (0, 96, 96)
    held = view(held={"r1": [short]}, at=2.0)
    assert evidence(sightings, longer, held, on("r0")).held_elsewhere == 96


def test_a_digest_is_not_asked_for_more_than_it_tells() -> None:
    # Computed to 2,992 tokens; a digest tells of 2,560 at most.
    sightings, short, longer = Sightings(), ask_for(prompt(3000)), ask_for(prompt(5000))
    sightings.note(short, on("r1"), 1.0)
    found = evidence(sightings, longer, view(held={"r1": [short]}, at=2.0), on("r0"))
    assert found.held_elsewhere == 2992


def test_who_left_or_restarted_or_cannot_be_reached_took_it_along() -> None:
    sightings, longer = Sightings(), ask_for(prompt(200))
    sightings.note(ask_for(prompt(100)), on("r1"), 1.0)
    for fleet, choice, unreachable in (
        (view("r0", "r2"), on("r0"), frozenset[str]()),
        (view(epoch="1"), on("r1", epoch="1"), frozenset[str]()),
        (view(), on("r0"), frozenset({"r1"})),
        # Not reached by an earlier ranking, and out of the view of this one.
        (view("r0", "r2"), on("r0"), frozenset({"r1"})),
    ):
        found = evidence(sightings, longer, fleet, choice, unreachable=unreachable)
        assert (found.held_elsewhere, found.held_by_departed) == (0, 96)


def test_only_a_policy_that_read_the_digest_was_misled_by_it() -> None:
    short = ask_for(prompt(100))
    fleet = view(held={"r0": [short]}, at=9.0)
    assert evidence(Sightings(), short, fleet, on("r0", expected=96)).told == 96
    assert evidence(Sightings(), short, fleet, on("r0")).told == 0
    # Nor by one that is as old as none.
    assert evidence(Sightings(), short, fleet, on("r0", expected=96), now=100.0).told == 0


def test_evictions_are_told_by_the_replica_or_not_at_all() -> None:
    sightings, ask = Sightings(), ask_for(prompt(100))
    sightings.note(ask, on("r0"), 1.0)
    told = evidence(sightings, ask, view(), on("r0"), hit_tokens=32, evicted_tokens=48)
    assert (told.evicted, told.seen) == (80, 96)
    silent = evidence(sightings, ask, view(), on("r0"), hit_tokens=32, evicted_tokens=None)
    assert attribute(silent) == Misses(partial_block=4, unknown=64)


def test_the_same_data_under_other_keys_is_found_as_deep_as_it_goes() -> None:
    sightings = Sightings()
    salted = {salt: salted_ask(prompt(1200), salt) for salt in ("a", "b")}
    assert sightings.note(salted["a"], on("r0"), 1.0) == 0
    assert sightings.note(salted["a"], on("r0"), 2.0) == 0
    assert sightings.note(salted["b"], on("r1"), 3.0) == 1200
    # Behind what is known under its own keys, others do not matter.
    assert sightings.note(salted["a"], on("r1"), 3.0, noted_tokens=1200) == 0
    shared = salted_ask(prompt(320) + prompt(500, seed=9), "c")
    assert sightings.note(shared, on("r1"), 4.0) == 320


def test_the_same_data_for_another_model_is_new() -> None:
    sightings = Sightings()
    for model, seen in (("m", 0), ("n", 0), ("m", 320)):
        # Under a salt the third time.
        keys = Keys(model, salt="s" if seen else None)
        ask = Ask(model, 320, b"", NAMER.chain_of_tokens(prompt(320), keys))
        assert sightings.note(ask, on("r0"), 1.0) == seen


def test_views_that_alternate_are_each_read_by_their_own_roster() -> None:
    sightings, longer = Sightings(), ask_for(prompt(200))
    sightings.note(ask_for(prompt(100)), on("r1"), 1.0)
    views = [(view(), (96, 0)), (view("r0", "r2"), (0, 96)), (view("r1", "r0"), (96, 0))]
    for fleet, told in views * 3 + [(view("r0"), (0, 96)) for _ in range(9)] + views:
        found = evidence(sightings, longer, fleet, on("r0"))
        assert (found.held_elsewhere, found.held_by_departed) == told


def test_restarts_without_end_are_forgotten_those_that_are_over_longest_first() -> None:
    sightings, fleet = Sightings(), view("r0", "r1")
    kept, first, last = (prompt(100, seed=seed) for seed in range(3))
    sizes = []
    for restart in range(3000):
        sightings.note(ask_for(kept), on("r0"), 1.0)
        sightings.note(ask_for(last if restart else first), on("r1", epoch=str(restart)), 1.0)
        evidence(sightings, ask_for(kept), fleet, on("r0"))
        if restart in (1500, 2999):
            sizes.append(held_bytes(sightings))
    assert sizes[1] - sizes[0] < 2000
    assert evidence(sightings, ask_for(kept), fleet, on("r1")).held_elsewhere == 96
    assert evidence(sightings, ask_for(last), fleet, on("r0")).held_by_departed == 96
    assert evidence(sightings, ask_for(first), fleet, on("r0")).seen == 0


def test_lengths_that_were_estimates_are_scaled() -> None:
    sightings = Sightings()
    sightings.note(ask_for(prompt(160)), on("r1"), 1.0)
    found = evidence(sightings, ask_for(prompt(320)), view(), on("r0"), prompt_tokens=160, scale=0.5)
    assert (found.held_elsewhere, found.seen) == (80, 80)


def test_prompts_without_a_name_are_no_one_elses() -> None:
    nameless = Ask("m", 40, b"spread")
    sightings = Sightings()
    assert sightings.note(nameless, on("r0"), 1.0) == 0
    assert attribute(evidence(sightings, nameless, view(), on("r0"))) == Misses(partial_block=8, cold=32)


def test_data_that_was_forgotten_is_not_taken_for_other_data() -> None:
    """Whoever goes on with an answer is noted once the text is gone."""
    sightings = Sightings()
    tokens = prompt(2000)
    ask = salted_ask(tokens, "one")
    sightings.note(ask, on("r1"), 1.0)
    ask.forget_text()
    assert sightings.note(ask, on("r2"), 2.0) == 0
    assert evidence(sightings, salted_ask(tokens, "one"), view(), on("r1")).held_elsewhere == 2000
    assert sightings.note(salted_ask(tokens, "other"), on("r1"), 3.0) == 2000
    assert sightings.note(salted_ask(prompt(2000, seed=2), "one"), on("r1"), 4.0) == 0
