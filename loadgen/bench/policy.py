"""The CPU time of one decision, part by part, over the live router's own fleet and policies."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from statistics import median
from time import thread_time_ns
from typing import Any

from pydantic import Field

from loadgen.bench.held_bytes import held_bytes
from loadgen.bench.quiet_fleet import QuietFleet, quiet_fleet
from loadgen.bench.traffic import MODEL, Conversation, conversations, namer_of
from router.chain.digest import is_boundary
from router.fleet.load import Lease, LoadBook
from router.observe.attribution import Misses, attribute
from router.observe.sightings import Sight, Sightings
from router.placement.ask import Ask, Choice
from router.placement.policy import Policy
from router.policies import load_policy
from router.settings import Options

# What is done for a request: the first five before it is on its way, the others as it is answered.
PARTS = ("marks", "view", "rank", "look", "commit", "lease", "note", "end")
_AHEAD = 5
# Virtual time between decisions: a thousand a second, so that digests stay as fresh as they are live.
_STEP_SECONDS = 0.001
_NAME_BYTES = 32


class DecisionOptions(Options):
    """What is decided on, and how often."""

    replicas: int = Field(16, ge=1, le=1024, description="Replicas to rank.")
    prompt_tokens: int = Field(4096, ge=1, le=1_000_000, description="Length of each prompt.")
    block_tokens: int = Field(16, ge=1, le=256, description="Tokens in a block; 16 as the router's chain.")
    digest_names: int = Field(
        4000, ge=0, le=1_000_000, description="Names in each replica's digest; some GiB of KV cache."
    )
    rounds: int = Field(7, ge=1, le=1000, description="Measured on their own; their median is told.")
    decisions: int = Field(200, ge=1, le=100_000, description="Decisions in a round, each on another prompt.")
    seed: int = Field(0, ge=0, description="Prompts, loads and what digests hold.")


@dataclass(frozen=True, slots=True)
class Spread:
    """Microseconds a decision: the median round, the fastest and the slowest."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, nanoseconds: Sequence[int], decisions: int) -> Spread:
        """Read the total times of rounds."""
        each = [max(0, total) / decisions / 1000 for total in nanoseconds]
        return cls(median(each), min(each), max(each))


@dataclass(frozen=True, slots=True)
class Costs:
    """The parts of a decision, those ahead of the request, and all; what is kept halfway and in the end.

    The state is the policy's; sightings are kept beside it, whatever the policy.
    """

    parts: dict[str, Spread]
    total: Spread
    whole: Spread
    requests: int
    state_bytes_halfway: int
    state_bytes: int
    sightings_bytes: int


def prepare(options: DecisionOptions) -> Sequence[Conversation]:
    """Make the prompts, for any number of policies and fleets."""
    count = (options.rounds + 1) * options.decisions
    return conversations(namer_of(options.block_tokens), count, options.prompt_tokens, options.seed)


def measure(
    policy: str,
    policy_options: dict[str, Any],
    options: DecisionOptions,
    prompts: Sequence[Conversation],
    on_round: Callable[[int], None] = lambda done: None,
) -> Costs:
    """Measure one policy; PolicyError where there is no such. `on_round` is told how many are done."""
    loaded = load_policy(policy, policy_options)
    return asyncio.run(_measure(loaded, options, prompts, on_round))


async def _measure(
    policy: Policy, options: DecisionOptions, prompts: Sequence[Conversation], on_round: Callable[[int], None]
) -> Costs:
    names = [f"replica-{number}" for number in range(options.replicas)]
    async with quiet_fleet(names, MODEL, namer_of(options.block_tokens).identity) as fleet:
        bench = _Bench(policy, fleet, options)
        bench.warm_up(prompts)
        halfway = held_bytes(policy)
        rounds = []
        for number in range(options.rounds + 1):
            first = number * options.decisions
            times = bench.round(prompts[first : first + options.decisions])
            # The first one warms up what no request before it has touched.
            if number:
                rounds.append(times)
                on_round(number)
        return Costs(
            {
                part: Spread.of([times[index] for times in rounds], options.decisions)
                for index, part in enumerate(PARTS)
            },
            Spread.of([sum(times[:_AHEAD]) for times in rounds], options.decisions),
            Spread.of([sum(times) for times in rounds], options.decisions),
            bench.requests,
            halfway,
            held_bytes(policy),
            bench.sightings_bytes(),
        )


class _Bench:
    """One policy on one fleet, in use: leases are open, and loads change from decision to decision."""

    def __init__(self, policy: Policy, fleet: QuietFleet, options: DecisionOptions) -> None:
        self.requests = 0
        self._policy = policy
        self._sightings = Sightings()
        self._fleet = fleet
        self._options = options
        self._draw = Random(options.seed)
        self._now = 0.0
        self._open: deque[tuple[LoadBook, Lease]] = deque()
        for replica in fleet.replicas.values():
            # As if each had reported a queue of its own.
            self._lend(replica.load, self._draw.random() / 2, 4000)

    def warm_up(self, prompts: Sequence[Conversation]) -> None:
        """Serve what was asked before, and let replicas tell of it."""
        held: dict[str, list[bytes]] = {name: [] for name in self._fleet.replicas}
        block = self._options.block_tokens
        for prompt in prompts:
            if prompt.before is not None and prompt.before.chain is not None:
                names = prompt.before.chain.names
                held[self._serve(prompt.before)] += [
                    name for depth, name in enumerate(names, 1) if is_boundary(depth, block)
                ]
        most = self._options.digest_names
        for name, known in held.items() if most else ():
            fill = [self._draw.randbytes(_NAME_BYTES) for _ in range(most - len(known))]
            self._fleet.tell_digest(name, known[:most] + fill, self._now)

    def round(self, prompts: Sequence[Conversation]) -> tuple[int, ...]:
        """Decide on each prompt, as far as a first attempt needs it; return the nanoseconds of each part."""
        policy, sightings, view_of = self._policy, self._sightings, self._fleet.fleet.view
        parts = [0] * len(PARTS)
        for prompt in prompts:
            now = self._tick()
            started = thread_time_ns()
            ask = prompt.ask()
            asked = thread_time_ns()
            view = view_of(MODEL, now)
            viewed = thread_time_ns()
            choice = policy.rank(ask, view, now)[0]
            ranked = thread_time_ns()
            sight = sightings.look(ask, view, now)
            looked = thread_time_ns()
            policy.commit(ask, choice, now)
            committed = thread_time_ns()
            self._lend(self._fleet.replicas[choice.name].load, choice.prefill_seconds, ask.prompt_tokens)
            lent = thread_time_ns()
            other_keys = sightings.note(ask, choice, now, sight.noted_tokens)
            noted = thread_time_ns()
            _attribute(sight, ask, choice, other_keys)
            ended = thread_time_ns()
            moments = (started, asked, viewed, ranked, looked, committed, lent, noted, ended)
            for part, (before, after) in enumerate(pairwise(moments)):
                parts[part] += after - before
        self.requests += len(prompts)
        clock = _clock_nanoseconds() * len(prompts)
        return tuple(max(0, total - clock) for total in parts)

    def sightings_bytes(self) -> int:
        """Return what the sightings keep; the roster is the fleet's."""
        return held_bytes(self._sightings, besides=[self._fleet.fleet.view(MODEL, self._now).roster])

    def _serve(self, ask: Ask) -> str:
        now = self._tick()
        choice = self._policy.rank(ask, self._fleet.fleet.view(MODEL, now), now)[0]
        self._policy.commit(ask, choice, now)
        self._sightings.note(ask, choice, now)
        self._lend(self._fleet.replicas[choice.name].load, choice.prefill_seconds, ask.prompt_tokens)
        self.requests += 1
        return choice.name

    def _tick(self) -> float:
        self._now += _STEP_SECONDS
        return self._now

    def _lend(self, book: LoadBook, seconds: float, tokens: int) -> None:
        self._open.append((book, book.open(seconds, self._now, tokens)))
        if len(self._open) > 4 * len(self._fleet.replicas):
            oldest, lease = self._open.popleft()
            oldest.close(lease)


def _attribute(sight: Sight, ask: Ask, choice: Choice, other_keys_tokens: int) -> Misses:
    """Say why was not hit what was not, of a request that hit what was expected."""
    evidence = sight.evidence(
        choice,
        frozenset(),
        prompt_tokens=ask.prompt_tokens,
        block_tokens=sight.block_tokens,
        hit_tokens=choice.expected_tokens,
        evicted_tokens=0,
        other_keys_tokens=other_keys_tokens,
        scale=1.0,
    )
    return attribute(evidence)


def _clock_nanoseconds() -> int:
    """Return what reading the clock adds to what lies between two readings."""
    readings = [thread_time_ns() for _ in range(101)]
    return int(median(after - before for before, after in pairwise(readings)))


def record_of(policy: str, options: DecisionOptions, costs: Costs) -> dict[str, Any]:
    """Return the figures as one record: microseconds of CPU time a decision, and bytes."""
    record: dict[str, Any] = {
        "policy": policy,
        "replicas": options.replicas,
        "prompt_tokens": options.prompt_tokens,
        "block_tokens": options.block_tokens,
        "digest_names": options.digest_names,
        "rounds": options.rounds,
        "decisions": options.decisions,
    }
    for part, spread in (*costs.parts.items(), ("total", costs.total), ("whole", costs.whole)):
        record[f"{part}_microseconds"] = round(spread.median, 2)
        record[f"{part}_least_microseconds"] = round(spread.least, 2)
        record[f"{part}_most_microseconds"] = round(spread.most, 2)
    rank = costs.parts["rank"].median / options.replicas
    return record | {
        "rank_microseconds_per_replica": round(rank, 3),
        "requests": costs.requests,
        "soft_state_bytes_halfway": costs.state_bytes_halfway,
        "soft_state_bytes": costs.state_bytes,
        "sightings_bytes": costs.sightings_bytes,
    }
