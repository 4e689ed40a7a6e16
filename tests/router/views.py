"""Fleet views and asks for policy tests, made of the router's own types."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from router.chain.digest import Digest, is_boundary
from router.chain.keys import Keys
from router.chain.namer import ChainNamer
from router.placement.ask import Ask
from router.placement.ring import Ring
from router.placement.view import FleetView, LoadView, ReplicaView

NAMER = ChainNamer("xxh3", "test", 16, None)
KEYS = Keys("m")


@cache
def _ring(names: tuple[str, ...]) -> Ring:
    return Ring(names)


def fleet_of(names: Sequence[str], **loads: LoadView) -> FleetView:
    """An idle fleet; `loads` by name."""
    replicas = [ReplicaView(name, f"{name}:0", loads.get(name, LoadView())) for name in names]
    return FleetView.of(replicas, _ring(tuple(names)))


def changed(
    fleet: FleetView,
    replicas: Sequence[ReplicaView] | None = None,
    digests: dict[str, Digest] | None = None,
    at: float = 0.0,
) -> FleetView:
    """The same fleet with other rows, or with digests by name, all made at `at`."""
    rows = fleet.replicas if replicas is None else replicas
    told = {name: (digest, at) for name, digest in (digests or {}).items()}
    return FleetView.of(rows, fleet.ring, fleet.members if replicas is None else 0, told)


def names_of(count: int) -> list[str]:
    return [f"replica-{index}" for index in range(count)]


def ask_for(tokens: Sequence[int], preamble_tokens: int = 0, **fields: Any) -> Ask:
    """An ask for a prompt of token ids."""
    chain = NAMER.chain_of_tokens(tokens, KEYS)
    if preamble_tokens:
        chain = chain._replace(preamble_tokens=preamble_tokens)
    spread = repr(list(tokens)).encode()
    return Ask("m", len(tokens), fields.pop("spread", spread), chain, **fields)


def digest_of(asks: Sequence[Ask], epoch: str) -> Digest:
    """The digest of a replica that holds all blocks of these prompts."""
    names = {
        name
        for ask in asks
        if ask.chain
        for depth, name in enumerate(ask.chain.names, 1)
        if is_boundary(depth, 16)
    }
    return Digest.of(names, NAMER.identity.fingerprint, epoch)


@dataclass(frozen=True)
class Turn:
    """One turn of an interleaved chat workload."""

    conversation: int
    number: int
    ask: Ask


def interleaved_chats(
    conversations: int,
    turns: int,
    new_tokens: int,
    system_tokens: int = 304,
    seed: int = 0,
    preamble: bool = True,
) -> Iterator[Turn]:
    """Chats with one shared system prompt, their turns in random order, each turn new_tokens longer."""
    draw = random.Random(seed)
    system = [draw.randrange(50_000) for _ in range(system_tokens)]
    prompts = [list(system) for _ in range(conversations)]
    order = [index for index in range(conversations) for _ in range(turns)]
    draw.shuffle(order)
    numbers = [0] * conversations
    for index in order:
        prompts[index] += [draw.randrange(50_000) for _ in range(new_tokens)]
        yield Turn(index, numbers[index], ask_for(prompts[index], system_tokens if preamble else 0))
        numbers[index] += 1
