"""Patients: files and fleets to examine, and what a diagnosis says of one check."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web

from loadgen.doctor.checks import CHECKS
from loadgen.doctor.evidence import Evidence, RoutedReplica, RouterSeen
from loadgen.doctor.examine import Diagnosis, Options, examine
from loadgen.doctor.figures import Figures
from loadgen.doctor.finding import Severity, Verdict
from tests.router.engines.scripted_engines import ScriptedEngine

WRONG, WARNING, NOTE = Severity.WRONG, Severity.WARNING, Severity.NOTE


async def diagnose(config: Path | None = None, url: str = "", **options: Any) -> Diagnosis:
    """Examine, telling nobody what is sent."""
    return await examine(Options(config, url, **options), lambda where, models: None)


def verdict(diagnosis: Diagnosis, name: str) -> Verdict:
    """Return what a check came to."""
    return next(verdict for check, verdict in diagnosis.verdicts if check.name == name)


def look(evidence: Evidence, name: str) -> Verdict:
    """Hold one check to evidence."""
    return next(check for check in CHECKS if check.name == name).look(evidence)


def severities(verdict: Verdict) -> list[Severity]:
    return [finding.severity for finding in verdict.findings]


def write(
    directory: Path, replicas: Mapping[str, str] | Sequence[tuple[str, str]] = (), **sections: Any
) -> Path:
    """Write a configuration over replicas by name; JSON values are TOML's but for nested tables."""
    pairs = replicas.items() if isinstance(replicas, Mapping) else replicas
    lines = [f"{name} = {value}" for name, value in _flat(sections)]
    for name, url in pairs:
        lines += ["[[fleet.replicas]]", f'name = "{name}"', f'url = "{url}"']
    file = directory / "kvring.toml"
    file.write_text("\n".join(lines) + "\n")
    return file


def router(*replicas: RoutedReplica, metrics: str = "", **fields: Any) -> RouterSeen:
    """A live router that tells these metrics, a line each."""
    text = "\n".join(line.strip() for line in metrics.strip().splitlines()) + "\n"
    told = {"ready": True, "uptime_seconds": 3600.0, "policy": "affinity", **fields}
    return RouterSeen("http://router", replicas=replicas, figures=Figures(text), **told)


def routed(name: str, state: str = "ready", **fields: Any) -> RoutedReplica:
    """A replica as a router tells of it."""
    told = {"engine": "kvring", "models": ("m",), "mismatch": False, "digest_age_seconds": 1.0, **fields}
    return RoutedReplica(name=name, state=state, **told)


@asynccontextmanager
async def serving(*routes: web.RouteDef) -> AsyncIterator[str]:
    """Serve these routes on loopback."""
    application = web.Application()
    application.add_routes(routes)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def _flat(sections: Mapping[str, Any], above: str = "") -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for name, value in sections.items():
        key = f"{above}{orjson.dumps(name).decode()}"
        if isinstance(value, Mapping):
            pairs += _flat(value, f"{key}.")
        else:
            pairs.append((key, _toml(value)))
    return pairs


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name} = {_toml(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return orjson.dumps(str(value) if isinstance(value, Path) else value).decode()


@asynccontextmanager
async def engines(*answers: dict[str, Any]) -> AsyncIterator[dict[str, str]]:
    """Serve engines that answer as told, and give their addresses by name: e0, e1, ..."""
    async with AsyncExitStack() as stack:
        yield {
            f"e{index}": await stack.enter_async_context(
                serving(web.get("/{rest:.*}", ScriptedEngine(told).answer))
            )
            for index, told in enumerate(answers)
        }
