"""Checks that what replicas hold is known: digests are there, fresh, and of the right names."""

from __future__ import annotations

from collections import defaultdict

from loadgen.doctor.evidence import Evidence, ReplicaSeen
from loadgen.doctor.finding import Finding, Verdict, counted, named, passed_over, warning, wrong

_STALE_SECONDS = 60.0
# A router that has just started has asked for few of them yet.
_SETTLED_SECONDS = 30.0
_COSTS = (
    "what it holds is guessed from what each router sent there, and a router that starts anew knows nothing"
)


def digests(evidence: Evidence) -> Verdict:
    """Look at the digests that replicas and sidecars serve, and at those that the router has."""
    served = [replica for replica in evidence.reached if replica.digest is not None]
    live = evidence.live
    expected = [one for one in live.replicas if one.usable and not one.mismatch] if live else []
    has_any = any(one.digest_age_seconds is not None for one in expected)
    expected = [
        one for one in expected if one.engine == "kvring" or one.digest_age_seconds is not None or has_any
    ]
    if not served and not expected:
        return passed_over("no replica here has one: engines have them by fleet.events")
    findings = _served(evidence, served)
    if live is not None and live.uptime_seconds >= _SETTLED_SECONDS:
        absent = [one.name for one in expected if one.digest_age_seconds is None]
        if absent:
            findings.append(
                wrong(
                    f"the router has no digest of {named(absent)}",
                    f"absent for {counted(len(absent), 'replica')} of {len(expected)}, after"
                    f" {live.uptime_seconds:,.0f} s",
                    _COSTS,
                    "see the router's log; GET /digest of the replica (or its sidecar) must"
                    " answer, and network"
                    " policies let routers ask it",
                )
            )
    stale = {
        one.name: one.digest_age_seconds
        for one in expected
        if one.digest_age_seconds is not None and one.digest_age_seconds > _STALE_SECONDS
    }
    if stale:
        findings.append(
            wrong(
                f"digests are old: {named(list(stale))}",
                f"the oldest is {max(stale.values()):,.0f} s old",
                "replicas are credited with what they dropped since, and not with what they hold now",
                "GET /digest must answer (see the router's log); look at fleet.digest_poll_seconds, and"
                " fleet.polls_per_second in a large fleet",
            )
        )
    return Verdict(
        f"{counted(len(served), 'digest')} asked for, {len(expected)} at the router", tuple(findings)
    )


def _served(evidence: Evidence, served: list[ReplicaSeen]) -> list[Finding]:
    findings: list[Finding] = []
    problems: dict[str, list[ReplicaSeen]] = defaultdict(list)
    for replica in served:
        assert replica.digest is not None
        if replica.digest.problem and replica.ready:
            problems[replica.kind].append(replica)
    for kind, replicas in problems.items():
        told = replicas[0].digest
        sidecar = kind != "kvring"
        findings.append(
            wrong(
                f"{'the sidecar' if sidecar else 'the digest'} of"
                f" {named([one.name for one in replicas])} does not answer",
                told.problem if told else "",
                _COSTS,
                "run `kvring sidecar` in each pod, with the router's --config and --host 0.0.0.0, on"
                " fleet.events.sidecar_port; its /readyz says what it lacks"
                if sidecar
                else "see the replica's log; it makes one each digest_seconds",
            )
        )
    for replica in served:
        digest, wanted = replica.digest, _identity(evidence, replica)
        if digest is None or digest.problem:
            continue
        if wanted and digest.identity != wanted:
            findings.append(
                wrong(
                    f"the digest of {replica.name} is of other names than it should be",
                    f"{digest.identity} there, {wanted} expected",
                    "it is not read: " + _COSTS,
                    "give the sidecar the router's own --config: chain and models must be the same"
                    if replica.state is None
                    else "restart the replica",
                )
            )
        if digest.age_seconds > _STALE_SECONDS:
            findings.append(
                warning(
                    f"{replica.name} serves an old digest",
                    f"it is {digest.age_seconds:,.0f} s old",
                    "it is credited with what it dropped since",
                    "see the log of the replica, or of its sidecar",
                )
            )
    return findings


def _identity(evidence: Evidence, replica: ReplicaSeen) -> str:
    if replica.state is not None:
        return replica.state.chain.fingerprint
    namer = evidence.namers.by_tokens(replica.model) if evidence.namers else None
    return namer.identity.fingerprint if namer else ""
