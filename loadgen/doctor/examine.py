"""Examines a configuration, a live fleet or both: gathers the evidence, and holds every check to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loadgen.doctor.ask_redis import ask_redis, connection_to
from loadgen.doctor.ask_replica import ask_replica
from loadgen.doctor.ask_router import ask_router, serves_control
from loadgen.doctor.checks import CHECKS, Check
from loadgen.doctor.evidence import Evidence, RouterSeen, Trial
from loadgen.doctor.finding import Finding, Severity, Verdict
from loadgen.doctor.members import members_of
from loadgen.doctor.probe import try_model
from loadgen.doctor.reach import Reach, Silent, shown
from router.chain.namers import Namers
from router.config import RouterConfig
from router.engines.answers import ask_models
from router.policies import PolicyError, load_policy
from router.settings import SettingsError
from router.shared.connection import Connection

MOST_REPLICAS = 64
MOST_MODELS = 8


@dataclass(frozen=True, slots=True)
class Options:
    """What to examine. `url` is a router's control port; `api_url` is where clients come in, if elsewhere."""

    config: Path | None = None
    url: str = ""
    api_url: str = ""
    probe: bool = False
    api_key: str | None = None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What each check came to, in the order of the checks."""

    verdicts: tuple[tuple[Check, Verdict], ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All of them."""
        return tuple(finding for _, verdict in self.verdicts for finding in verdict.findings)

    @property
    def well(self) -> bool:
        """Whether nothing is wrong; there may be warnings and notes."""
        return all(finding.severity is not Severity.WRONG for finding in self.findings)

    @property
    def looked(self) -> int:
        """How many checks had something to look at."""
        return sum(verdict.looked for _, verdict in self.verdicts)

    def to_json(self) -> dict[str, Any]:
        """Return the diagnosis as JSON; fields may be added, none changes its meaning."""
        return {
            "well": self.well,
            "counts": {
                "checked": self.looked,
                "passed_over": len(self.verdicts) - self.looked,
                **{
                    severity.value: sum(finding.severity is severity for finding in self.findings)
                    for severity in Severity
                },
            },
            "checks": [
                {
                    "name": check.name,
                    "asks": check.asks,
                    "looked": verdict.looked,
                    "seen": verdict.seen,
                    "findings": [finding.to_json() for finding in verdict.findings],
                }
                for check, verdict in self.verdicts
            ],
        }


def judge(evidence: Evidence) -> Diagnosis:
    """Hold every check to the evidence."""
    return Diagnosis(tuple((check, check.look(evidence)) for check in CHECKS))


async def examine(options: Options, announce: Callable[[str, Sequence[str]], None]) -> Diagnosis:
    """Gather all evidence and judge it. `announce` is told where requests go, and for which models."""
    evidence = read_config(options.config) if options.config else Evidence()
    async with Reach() as reach:
        evidence = await _ask_fleet(reach, evidence)
        if options.url:
            evidence = replace(evidence, router=await ask_router(reach, options.url, options.api_key))
        if (
            options.api_url
            and options.api_url != options.url
            and await serves_control(reach, options.api_url)
        ):
            evidence = replace(evidence, public_control=shown(options.api_url))
        if options.probe:
            evidence = replace(evidence, trials=await _try_models(reach, options, evidence, announce))
    return judge(evidence)


def read_config(file: Path) -> Evidence:
    """Read a router's file as the router would; what is wrong with it is evidence too."""
    try:
        config = RouterConfig.load(file)
    except SettingsError as error:
        return Evidence(config_problems=tuple(str(error).splitlines()))
    problems: list[str] = []
    for title, name, given in (
        ("policy", config.policy.name, config.policy.options),
        *((f"observe.shadow {one.name}", one.policy, one.options) for one in config.observe.shadow),
    ):
        try:
            load_policy(name, given)
        except PolicyError as error:
            problems.append(f"{title}: {error}")
    directories = {}
    for model, known in config.models.items():
        if known.tokenizer_directory is not None:
            directories[model] = known.tokenizer_directory
    namers, unread = _namers(config, directories)
    return Evidence(config=config, config_problems=(*problems, *unread), namers=namers)


def _namers(config: RouterConfig, directories: dict[str, Path]) -> tuple[Namers, list[str]]:
    """Load each tokenizer by itself, so that one that cannot be read does not hide the others."""
    readable: dict[str, Path] = {}
    problems: list[str] = []
    for model, directory in directories.items():
        try:
            Namers(config.chain, {model: directory})
        except (OSError, ValueError) as error:
            problems.append(f"models.{model}.tokenizer_directory: {error}")
        else:
            readable[model] = directory
    return Namers(config.chain, readable), problems


async def _ask_fleet(reach: Reach, evidence: Evidence) -> Evidence:
    """Ask Redis, find the members, and ask each of them."""
    config = evidence.config
    if config is None:
        return evidence
    connection: Connection | None = None
    if config.redis.url.get_secret_value():
        try:
            connection = connection_to(config.redis)
        except ValueError as error:
            return replace(evidence, config_problems=(*evidence.config_problems, f"redis.url: {error}"))
    try:
        if connection is not None:
            evidence = replace(evidence, redis=await ask_redis(connection, config.redis))
        members, silent = await members_of(config, connection)
    finally:
        if connection is not None:
            await connection.close()
    asked = members[:MOST_REPLICAS]
    replicas = await asyncio.gather(*(ask_replica(reach, member, config) for member in asked))
    return replace(
        evidence, replicas=tuple(replicas), silent_sources=silent, left_out=len(members) - len(asked)
    )


async def _try_models(
    reach: Reach, options: Options, evidence: Evidence, announce: Callable[[str, Sequence[str]], None]
) -> tuple[Trial, ...]:
    """Send requests where clients do: to the API, else to the router, else to a replica of each model."""
    where = options.api_url or options.url
    ready = {replica.model: replica.url for replica in evidence.reached if replica.ready and replica.model}
    trials = []
    for model in (await _models(reach, where, evidence.live) if where else list(ready))[:MOST_MODELS]:
        url = where or ready[model]
        announce(url, [model])
        # One step nearer to the replica, to tell who holds tokens back.
        nearer = options.url if options.api_url and options.url else ready.get(model, "")
        # A key goes only where it was said that it is for.
        trials.append(await try_model(url, model, options.api_key if where else None, nearer))
    return tuple(trials)


async def _models(reach: Reach, where: str, router: RouterSeen | None) -> list[str]:
    """Return the main models of usable replicas, as adapters share their tokens; else what is listed."""
    if router is not None:
        main = (replica.models[0] for replica in router.replicas if replica.usable and replica.models)
        return list(dict.fromkeys(main))
    try:
        return list((await ask_models(reach.of(where))).names)
    except (Silent, ValueError):
        return []
