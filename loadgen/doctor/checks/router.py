"""Checks the router itself: ready, on its newest options, and those of the file."""

from __future__ import annotations

from loadgen.doctor.evidence import Evidence, RouterSeen
from loadgen.doctor.finding import Finding, Verdict, note, passed_over, warning, wrong
from router.observe.fingerprint import config_fingerprint, release

_FAILED = ("replica_error", "broken_off", "unanswered", "turned_away", "refused", "router_error")
_ENOUGH_REQUESTS = 20


def router(evidence: Evidence) -> Verdict:
    """Look at a live router."""
    seen = evidence.router
    if seen is None:
        return passed_over("no --url")
    if seen.problem:
        return Verdict(
            seen.url,
            (
                wrong(
                    "the router does not tell of itself",
                    f"{seen.url}: {seen.problem}",
                    "nothing of the live fleet could be checked",
                    "give --url the router's address (its control port, where control.port is"
                    " set), and check that"
                    " it runs and that this machine may reach it",
                ),
            ),
        )
    findings = [*_readiness(seen), *_options(evidence, seen), *_failures(seen)]
    version = f"version {seen.version or 'unknown'}, policy {seen.policy}"
    return Verdict(f"{seen.url}: {version}, up for {seen.uptime_seconds:,.0f} s", tuple(findings))


def _readiness(seen: RouterSeen) -> list[Finding]:
    if seen.draining:
        return [
            note(
                "the router is ending",
                "/readyz says that it drains",
                "it takes no new requests soon; what it tells is of its last moments",
                "ask another one",
            )
        ]
    if seen.ready:
        return []
    return [
        wrong(
            "the router is not ready",
            f"/readyz: {seen.reason or 'no reason given'}",
            "requests wait limits.no_replica_wait_seconds and are then answered 503",
            "see the findings on members and replicas below",
        )
    ]


def _options(evidence: Evidence, seen: RouterSeen) -> list[Finding]:
    findings: list[Finding] = []
    if not seen.options_current:
        findings.append(
            wrong(
                "the router refused its changed configuration",
                "kvring_config_current is 0",
                "it goes on with the old options, and would not start anew with the new ones",
                "its log says which option is unfit, or needs a restart; `kvring doctor --config"
                " FILE` reads the file",
            )
        )
    config = evidence.config
    # Another release has other options, and so another fingerprint of the same file.
    if config is not None and not evidence.config_problems and seen.version == release():
        ours = config_fingerprint(config)
        if config.policy.name != seen.policy:
            findings.append(
                warning(
                    "the router runs another policy than the file names",
                    f"{seen.policy} there, {config.policy.name} in the file",
                    "what is checked of the file does not hold for this router",
                    "reload the router (SIGHUP), restart it, or give the file that it was started with",
                )
            )
        elif seen.config and ours != seen.config:
            findings.append(
                note(
                    "the router runs other options than the file",
                    f"their fingerprint is {seen.config} there, and {ours} for the file",
                    "routers with different options place conversations differently",
                    "flags (--set) and environment (KVRING_...) of the router count too; else"
                    " reload it (SIGHUP)",
                )
            )
    return findings


def _failures(seen: RouterSeen) -> list[Finding]:
    by_outcome = seen.figures.by("kvring_model_requests_total", "outcome")
    total, failed = sum(by_outcome.values()), sum(by_outcome.get(outcome, 0) for outcome in _FAILED)
    if total < _ENOUGH_REQUESTS or failed <= 0.05 * total:
        return []
    kinds = ", ".join(
        f"{outcome} {by_outcome[outcome]:,.0f}" for outcome in _FAILED if by_outcome.get(outcome)
    )
    return [
        wrong(
            "many requests fail",
            f"{failed:,.0f} of {total:,.0f} since the start ({kinds})",
            "clients get errors, or nothing",
            "the router's log names replica and reason; turned_away asks for more replicas,"
            " refused for usable ones",
        )
    ]
