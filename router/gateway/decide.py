"""Decide: the fleet's view for an ask, and the policy's ranking of it."""

from __future__ import annotations

from time import perf_counter

from router.config import RouterConfig
from router.fleet.fleet import Fleet
from router.observe.metrics import RouterMetrics
from router.placement.ask import Ask, Ranking
from router.placement.policy import Policy
from router.placement.view import FleetView
from router.wire.errors import ApiError, Source

# Policies of this package are held to their contract by its tests.
_SHIPPED = "router.policies."


class Decider:
    """Ranks the replicas that serve a model, for requests and for those who only ask.

    A policy of one's own that ranks who is not in its view fails with a ValueError, before anything is sent.
    """

    def __init__(self, config: RouterConfig, fleet: Fleet, policy: Policy, metrics: RouterMetrics) -> None:
        self._config = config
        self._fleet = fleet
        self._policy = policy
        self._metrics = metrics
        self._checked = not type(policy).__module__.startswith(_SHIPPED)

    def decide(self, ask: Ask, now: float) -> tuple[FleetView, Ranking]:
        """Rank for a request that will be sent, and time it; ApiError where nobody serves the model."""
        view = self._view(ask.model, now)
        before = perf_counter()
        ranking = self._rank(ask, view, now)
        self._metrics.decision.observe(perf_counter() - before)
        return view, ranking

    def rank(self, ask: Ask, now: float, everybody: bool = False) -> tuple[FleetView, Ranking]:
        """Rank for its own sake, or `everybody`, as Fleet.view does; ApiError as above."""
        view = self._view(ask.model, now, everybody)
        return view, self._rank(ask, view, now)

    def _rank(self, ask: Ask, view: FleetView, now: float) -> Ranking:
        ranking = self._policy.rank(ask, view, now)
        if self._checked:
            # No further than it will be walked.
            for choice in ranking[: self._config.limits.attempts]:
                if choice.name not in view.places:
                    raise ValueError(f"the policy ranked {choice.name[:200]!r}, which it was not given")
        return ranking

    def _view(self, model: str, now: float, everybody: bool = False) -> FleetView:
        view = self._fleet.view(model, now, everybody)
        if len(view):
            return view
        known = self._fleet.known_models()
        if known and model not in known and model not in self._config.models:
            raise ApiError(
                404,
                f"the model {model[:200]!r} does not exist; there are: {', '.join(known[:50])}",
                code="model_not_found",
                param="model",
            )
        raise ApiError(
            503,
            "no replica can serve this model now",
            source=Source.ROUTER,
            code="no_replica",
            retry_after_seconds=2,
        )
