"""Serving: the parts that one configuration makes; where options change, they are replaced as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from router.config import RouterConfig
from router.fleet.fleet import Fleet
from router.gateway.admission import Admission
from router.gateway.budget import RetryBudget
from router.gateway.debug import Debug
from router.gateway.decide import Decider
from router.gateway.delivery import Delivery
from router.gateway.dispatch import Dispatch
from router.gateway.keyring import Keyring
from router.gateway.prepare import Preparer
from router.gateway.relay import Relay
from router.gateway.succession import Succession
from router.http.pool import Pool
from router.observe.decisions import Decisions
from router.observe.layout.watch import LayoutWatch
from router.observe.ledger import Ledger
from router.observe.metrics import RouterMetrics
from router.observe.shadow import Shadow, Shadows
from router.observe.sightings import Sightings
from router.observe.witness import Later, Witness
from router.placement.policy import Policy
from router.policies import load_policy


@dataclass(frozen=True, slots=True, eq=False)
class Lasting:
    """What outlives a change of options."""

    fleet: Fleet
    preparer: Preparer
    pool: Pool
    metrics: RouterMetrics
    watch: LayoutWatch | None
    sightings: Sightings
    later: Later


@dataclass(frozen=True, slots=True, eq=False)
class Serving:
    """What serves a request, from one configuration. A request stays with the parts that it began with."""

    config: RouterConfig
    policy: Policy
    shadows: Shadows
    decisions: Decisions | None
    decider: Decider
    witness: Witness
    admission: Admission
    budget: RetryBudget
    relay: Relay
    ledger: Ledger
    debug: Debug
    keyring: Keyring
    session_header: bytes

    @classmethod
    def build(cls, config: RouterConfig, lasting: Lasting, before: Serving | None = None) -> Serving:
        """Build the parts; PolicyError where a policy is unfit.

        What policies and records of decisions have learned, and what is left of the retry budget, stays where
        their options are as `before`.
        """
        observe, metrics = config.observe, lasting.metrics
        policy, shadows, decisions = _learned(config, metrics, before)
        witness = Witness(policy, config.policy.name, shadows, decisions, lasting.later, lasting.sightings)
        decider = Decider(config, lasting.fleet, policy, metrics)
        dispatch = Dispatch(lasting.pool, keep_keys=config.auth.keys_file is None)
        delivery = Delivery(witness, config.policy.name, observe)
        limits, fleet = config.limits, lasting.fleet
        admission = Admission(fleet, limits, metrics)
        budget = _budget(config, before)
        succession = Succession(fleet, decider, dispatch, delivery, admission, limits, metrics)
        relay = Relay(
            fleet, dispatch, delivery, succession, admission, budget, limits, metrics, decider, witness
        )
        return cls(
            config=config,
            policy=policy,
            shadows=shadows,
            decisions=decisions,
            decider=decider,
            witness=witness,
            admission=admission,
            budget=budget,
            relay=relay,
            ledger=Ledger(metrics, observe.access_log),
            keyring=Keyring.load(config.auth.keys_file) if config.auth.keys_file else Keyring.open(),
            session_header=config.sessions.header.lower().encode(),
            debug=Debug(config, lasting.preparer, decider, witness, decisions, shadows, lasting.watch),
        )


def _learned(
    config: RouterConfig, metrics: RouterMetrics, before: Serving | None
) -> tuple[Policy, Shadows, Decisions | None]:
    observe = config.observe
    policy = before.policy if before and before.config.policy == config.policy else None
    shadows = before.shadows if before and before.config.observe.shadow == observe.shadow else None
    decisions = None
    if observe.explain:
        limit = observe.explained_requests
        same = before and before.decisions and before.config.observe.explained_requests == limit
        decisions = before.decisions if before and same else Decisions(limit)
    return (
        policy or load_policy(config.policy.name, config.policy.options),
        shadows if shadows is not None else _shadows(config, metrics),
        decisions,
    )


def _budget(config: RouterConfig, before: Serving | None) -> RetryBudget:
    """Return what may be retried: a change of other options brings no new burst."""
    budget = RetryBudget(config.limits)
    return before.budget if before and before.budget.alike(budget) else budget


def _shadows(config: RouterConfig, metrics: RouterMetrics) -> Shadows:
    return Shadows(
        [
            Shadow(one.name, one.policy, load_policy(one.policy, one.options), one.sample_share, metrics)
            for one in config.observe.shadow
        ]
    )


def check_policies(config: RouterConfig) -> None:
    """PolicyError where a policy, acting or in shadow, is unfit."""
    load_policy(config.policy.name, config.policy.options)
    for shadow in config.observe.shadow:
        load_policy(shadow.policy, shadow.options)


# What a running router cannot take up: sockets, names of blocks, and what is built around them.
_FIXED = (
    "listen",
    "control",
    "redis",
    "chain",
    "models",
    "picker",
    "fleet.dns",
    "fleet.kubernetes",
    "fleet.leases",
    "fleet.engine",
    "fleet.events",
    "fleet.calibration",
    "limits.tokenizer_threads",
    "limits.idle_connection_seconds",
    "observe.layout",
    "observe.log_format",
    "observe.traces",
)


def fixed_changes(before: RouterConfig, after: RouterConfig) -> list[str]:
    """Return the names of changed options that only a restart takes up."""
    return [name for name in _FIXED if _value(before, name) != _value(after, name)]


def _value(config: Any, name: str) -> Any:
    for part in name.split("."):
        config = config[part] if isinstance(config, Mapping) else getattr(config, part)
    return config
