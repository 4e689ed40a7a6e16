"""Shadow policies: they rank a sample of the live traffic, and nothing is sent where they say.

Each keeps a policy object of its own, which learns from its own choices. Whole conversations are sampled, so
that a shadow sees all turns of those it sees. What it would have hit is an estimate: by a small model of all
caches as they would be, had the sample gone the shadow's way; the acting policy's choices are put through
the same model, and only the two compare. The load that a shadow sees is what the acting policy made.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from xxhash import xxh3_64_intdigest

from router.observe.course import Course
from router.observe.metrics import RouterMetrics
from router.placement.ask import Ask, Choice
from router.placement.policy import Policy
from router.placement.view import FleetView

log = logging.getLogger("kvring.shadow")

# All shadows together get this share of the time, each its part, and may save up so much: a slow one skips.
_TIME_SHARE = 0.05
_MOST_SAVED_SECONDS = 0.25
# Prompts without instructions ahead are told apart by so much of their beginning.
_BEGINNING_TOKENS = 512
_SEED = 0x5AD0
_ACTING, _SHADOW = "acting", "shadow"


class Shadow:
    """One policy in shadow."""

    def __init__(
        self, name: str, policy_name: str, policy: Policy, sample_share: float, metrics: RouterMetrics
    ) -> None:
        self.name = name
        self.policy_name = policy_name
        self.sample_share = sample_share
        self.ranked = 0
        self.agreed = 0
        self.errors = 0
        self.skipped = 0
        self.courses = {_SHADOW: Course(), _ACTING: Course()}
        self._policy = policy
        self._metrics = metrics

    def rank(self, ask: Ask, fleet: FleetView, now: float) -> Choice | None:
        """Return its first choice; None where it fails."""
        try:
            choice = self._policy.rank(ask, fleet, now)[0]
            if choice.name not in fleet.places:
                raise LookupError(f"{choice.name!r} is not in the fleet")
            return choice
        except Exception as error:
            self._failed(error)
            return None

    def accepted(self, ask: Ask, choice: Choice, agreed: bool, acting: Choice, now: float) -> None:
        """Learn from its own choice, now that the request was dispatched, to `acting`."""
        try:
            self._policy.commit(ask, choice, now)
        except Exception as error:
            self._failed(error)
            return
        self.ranked += 1
        self.agreed += agreed
        metrics = self._metrics
        metrics.shadow_ranked.labels(self.name).inc()
        metrics.shadow_agreed.labels(self.name).inc(agreed)
        metrics.shadow_prompt_tokens.labels(self.name).inc(ask.prompt_tokens)
        conversation = conversation_of(ask)
        for label, one in ((_SHADOW, choice), (_ACTING, acting)):
            course = self.courses[label]
            hit, moved = course.take(ask, one, conversation)
            metrics.shadow_hit_tokens.labels(self.name, label).inc(hit)
            metrics.shadow_moved.labels(self.name, label).inc(moved)
            metrics.shadow_busiest.labels(self.name, label).set(course.busiest_share)

    def skip(self) -> None:
        """Note that there was no time."""
        self.skipped += 1
        self._metrics.shadow_skipped.labels(self.name).inc()

    def forget(self) -> None:
        """Drop what its metrics say: there is no such shadow any more."""
        self._metrics.forget_shadow(self.name)

    def report(self) -> dict[str, Any]:
        """Return its figures so far; shares are None before there is anything to divide by."""
        return {
            "name": self.name,
            "policy": self.policy_name,
            "sample_share": self.sample_share,
            "requests": self.ranked,
            "errors": self.errors,
            "skipped": self.skipped,
            "agreement": self.agreed / self.ranked if self.ranked else None,
            "courses": {label: course.report() for label, course in self.courses.items()},
        }

    def _failed(self, error: Exception) -> None:
        self._metrics.shadow_errors.labels(self.name).inc()
        self.errors += 1
        if self.errors == 1:
            log.warning("the shadow %s failed; it goes on being asked", self.name, exc_info=error)


class Shadows:
    """All shadows of a router. None of them can disturb a request, nor another shadow."""

    def __init__(self, shadows: Sequence[Shadow], clock: Callable[[], float] = perf_counter) -> None:
        self._shadows = shadows
        self._widest = max((shadow.sample_share for shadow in shadows), default=0.0)
        self._clock = clock
        self._time = {shadow.name: _Time(_TIME_SHARE / len(shadows), clock()) for shadow in shadows}

    def __len__(self) -> int:
        return len(self._shadows)

    def sampled(self, ask: Ask) -> bool:
        """Say whether any shadow ranks this request."""
        return self._widest > 0 and _point(ask) < self._widest

    def rank(self, ask: Ask, fleet: FleetView, now: float) -> dict[str, Choice]:
        """Return the first choice of each shadow that samples this request, by the shadow's name."""
        point = _point(ask)
        choices = {}
        for shadow in self._shadows:
            if point >= shadow.sample_share:
                continue
            before = self._clock()
            time = self._time[shadow.name]
            if not time.left(before):
                shadow.skip()
                continue
            if (choice := shadow.rank(ask, fleet, now)) is not None:
                choices[shadow.name] = choice
            time.saved -= self._clock() - before
        return choices

    def accepted(
        self, ask: Ask, choices: Mapping[str, Choice], first: Choice, acting: Choice, now: float
    ) -> None:
        """Note that a request was dispatched, to `acting`; the acting policy's first choice was `first`."""
        for shadow in self._shadows:
            if (choice := choices.get(shadow.name)) is not None:
                shadow.accepted(ask, choice, choice.name == first.name, acting, now)

    def give_way(self, to: Shadows) -> None:
        """Rank no more, for requests that began before either; who is not among `to` is forgotten."""
        stay = {shadow.name for shadow in to._shadows}
        gone = [shadow for shadow in self._shadows if shadow.name not in stay]
        self._shadows, self._widest = (), 0.0
        for shadow in gone:
            shadow.forget()

    def report(self) -> list[dict[str, Any]]:
        """Return the figures of each."""
        return [shadow.report() for shadow in self._shadows]


@dataclass(slots=True)
class _Time:
    """A shadow's time: it grows by `share` of what passes, up to a limit, and shrinks by what it takes."""

    share: float
    at: float
    saved: float = _MOST_SAVED_SECONDS

    def left(self, now: float) -> bool:
        """Say whether any is left now."""
        self.saved = min(_MOST_SAVED_SECONDS, self.saved + (now - self.at) * self.share)
        self.at = now
        return self.saved > 0


def conversation_of(ask: Ask) -> int:
    """Return a number that all turns of a conversation share.

    By its session; else by its beginning: the instructions and a block of what follows, or 512 tokens where
    nothing tells how long those are. A first turn that ends before that counts apart.
    """
    if ask.session is not None:
        return xxh3_64_intdigest(ask.session, _SEED)
    chain = ask.chain
    if chain is None:
        return xxh3_64_intdigest(ask.spread, _SEED)
    beginning = chain.preamble_tokens + 2 * chain.block_tokens if chain.preamble_tokens else _BEGINNING_TOKENS
    depth = max(1, beginning // chain.block_tokens)
    whole = depth > len(chain.names)
    return xxh3_64_intdigest(chain.data if whole else chain.names[depth - 1], _SEED)


def _point(ask: Ask) -> float:
    """Return where the conversation lies between 0 and 1."""
    return conversation_of(ask) / 2**64
