"""The witness: sees each decision through to its outcome, so that misses can be explained."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import time
from typing import Any

from router.observe.attribution import Evidence, Misses, attribute
from router.observe.decisions import Decisions, Record, record_of
from router.observe.outcome import Outcome
from router.observe.shadow import Shadows
from router.observe.sightings import Sight, Sightings
from router.placement.ask import Ask, Choice, Ranking
from router.placement.policy import Policy
from router.placement.view import FleetView

log = logging.getLogger("kvring.witness")

# Calls a function with its arguments soon, once what is being done now is done.
Later = Callable[..., Any]

_NOBODY: frozenset[str] = frozenset()


class Decision:
    """One ranking on its way to an outcome.

    `prompts` is how many prompts the request holds; the ask is about the first. `unreachable` gathers the
    replicas that turned out to be gone.
    """

    __slots__ = (
        "ask",
        "choice",
        "other_keys_tokens",
        "prompts",
        "ranking",
        "shadowed",
        "sight",
        "unreachable",
    )

    def __init__(self, ask: Ask, ranking: Ranking, sight: Sight, prompts: int) -> None:
        self.ask = ask
        self.ranking = ranking
        self.sight = sight
        self.prompts = prompts
        self.choice: Choice | None = None
        self.unreachable = _NOBODY
        self.other_keys_tokens = 0
        self.shadowed: dict[str, Choice] = {}

    def not_reached(self, name: str) -> None:
        """Note that a replica of the ranking was gone."""
        self.unreachable |= {name}


class Witness:
    """Tells the acting policy, the shadows and the router's own sightings what became of each decision."""

    def __init__(
        self,
        policy: Policy,
        policy_name: str,
        shadows: Shadows,
        decisions: Decisions | None,
        later: Later,
        sightings: Sightings | None = None,
    ) -> None:
        """`decisions` is None where requests are not to be explained one by one.

        `sightings` are what was seen before; without, nothing was.
        """
        self._policy = policy
        self._policy_name = policy_name
        self._shadows = shadows
        self._sightings = Sightings() if sightings is None else sightings
        self._decisions = decisions
        self._later = later

    def decided(
        self,
        ask: Ask,
        fleet: FleetView,
        ranking: Ranking,
        now: float,
        outcome: Outcome,
        prompts: int = 1,
        earlier: Decision | None = None,
    ) -> Decision:
        """Take in a ranking that is about to be walked down.

        `earlier` is one of the same request that nobody could be reached by: this takes its place.
        """
        decision = Decision(ask, ranking, self._sightings.look(ask, fleet, now), prompts)
        if earlier is not None:
            decision.unreachable = earlier.unreachable
        if self._shadows.sampled(ask):
            # After the request is on its way: it never waits for a shadow.
            self._later(self._shadow, decision, fleet, now)
        if self._decisions is not None:
            record = self._record(decision, outcome.tier, outcome=outcome)
            self._decisions.keep(outcome.request_id, record)
        return decision

    def explain(self, ask: Ask, tier: str, fleet: FleetView, ranking: Ranking, now: float) -> Record:
        """Return the record of a ranking that nobody will walk down; all of it."""
        sight = self._sightings.look(ask, fleet, now)
        return record_of(ask, tier, sight, ranking, self._policy_name, time(), keep=len(ranking))

    def accepted(self, decision: Decision, choice: Choice, now: float) -> None:
        """Note that `choice` took the request."""
        decision.choice = choice
        self._policy.commit(decision.ask, choice, now)
        if decision.shadowed:
            self._shadows.accepted(decision.ask, decision.shadowed, decision.ranking[0], choice, now)

    def widened(self, decision: Decision, fleet: FleetView, now: float) -> None:
        """Note that the ranking goes on over a wider view: what is missed is judged by that."""
        decision.sight = self._sightings.look(decision.ask, fleet, now)

    def taken_over(self, decision: Decision, fleet: FleetView, choice: Choice, now: float) -> None:
        """Note that `choice`, of a later view, goes on with the answer: what is missed is missed there."""
        decision.sight = self._sightings.look(decision.ask, fleet, now)
        decision.choice = choice
        self._policy.commit(decision.ask, choice, now)

    def began(self, decision: Decision, now: float) -> None:
        """Note the first byte of an answer: the prompt is computed. Who goes on with one begins it, too."""
        if decision.choice is not None:
            noted = decision.sight.noted_tokens
            others = self._sightings.note(decision.ask, decision.choice, now, noted)
            decision.other_keys_tokens = max(decision.other_keys_tokens, others)

    def ended(self, decision: Decision, outcome: Outcome) -> None:
        """Write into the outcome why what was not hit was not. Never fails: the request was served."""
        if not outcome.served or decision.choice is None:
            return
        try:
            outcome.misses = _misses(decision, decision.choice, outcome)
        except Exception:
            log.exception("nobody can tell why request %s missed", outcome.request_id)
            outcome.misses = Misses(unknown=max(0, outcome.prompt_tokens - (outcome.hit_tokens or 0)))

    def _shadow(self, decision: Decision, fleet: FleetView, now: float) -> None:
        decision.shadowed = self._shadows.rank(decision.ask, fleet, now)

    def _record(self, decision: Decision, tier: str, outcome: Outcome) -> Record:
        return record_of(
            decision.ask, tier, decision.sight, decision.ranking, self._policy_name, time(), outcome=outcome
        )


def _misses(decision: Decision, choice: Choice, outcome: Outcome) -> Misses:
    ask, length, hit = decision.ask, outcome.prompt_tokens, outcome.hit_tokens
    if hit is None:
        # Nobody told what was hit; so that sums stay exact, this is what is not known.
        return Misses(unknown=length)
    if hit >= length - 1:
        return Misses(partial_block=length - hit)
    block = outcome.block_tokens or (ask.chain.block_tokens if ask.chain else 1)
    if decision.prompts > 1:
        # What the hits fall on among several prompts, nobody told.
        return attribute(Evidence(length, block, hit, seen=length))
    evidence = decision.sight.evidence(
        choice,
        decision.unreachable,
        prompt_tokens=length,
        block_tokens=block,
        hit_tokens=hit,
        evicted_tokens=outcome.evicted_tokens,
        other_keys_tokens=decision.other_keys_tokens,
        scale=length / ask.prompt_tokens,
    )
    return attribute(evidence)
