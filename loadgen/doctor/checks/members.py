"""Checks who is in the fleet: whether sources tell, who answers, and which models they serve."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from difflib import get_close_matches

from loadgen.doctor.evidence import Evidence, RoutedReplica
from loadgen.doctor.finding import Finding, Verdict, counted, named, note, passed_over, warning, wrong

_SOURCE_MENDS = {
    "dns": "check that fleet.dns.host resolves here (a headless Service), and fleet.dns.nameservers",
    "kubernetes": (
        "check fleet.kubernetes.service and namespace, that the account may list endpointslices, and"
        " that the doctor runs within the cluster"
    ),
    "leases": "check redis.url and redis.group, and that replicas have lease.redis and the same lease.group",
    "static": "list replicas under fleet.replicas",
}
_STATE_MENDS = {
    "down": "look at its process and log; it is routed to again as soon as it answers",
    "suspect": "its last probes or answers failed: see its log and load, and fleet.hung",
    "joining": "it is loading, or its name or model is not known yet; see its log",
}


def members(evidence: Evidence) -> Verdict:
    """Look at the sources of members."""
    live, config = evidence.live, evidence.config
    if config is None and live is None:
        return passed_over("neither --config nor a live router")
    findings = [_silent(kind, why) for kind, why in evidence.silent_sources.items()]
    if live is not None:
        up = live.figures.by("kvring_discovery_up", "source")
        ages = live.figures.by("kvring_discovery_age_seconds", "source")
        for kind, answered in up.items():
            if not answered and kind not in evidence.silent_sources:
                findings.append(
                    _silent(kind, f"the router heard nothing of it for {ages.get(kind, 0):,.0f} s")
                )
    known = len(live.replicas) if live else len(evidence.replicas) + evidence.left_out
    if not known and not findings:
        findings.append(
            wrong(
                "the fleet has no replica",
                "no source names one",
                "every request is answered 503",
                "list replicas under fleet.replicas, or name a source: fleet.dns.host,"
                " fleet.kubernetes.service or"
                " fleet.leases.enabled",
            )
        )
    more = f" ({evidence.left_out:,} more were not asked)" if evidence.left_out else ""
    return Verdict(f"{counted(known, 'member')}{more}", tuple(findings))


def replicas(evidence: Evidence) -> Verdict:
    """Look at who answers here, and what the router makes of each."""
    live = evidence.live
    if not evidence.replicas and live is None:
        return passed_over("no member is known")
    findings: list[Finding] = []
    routed = {replica.name: replica for replica in live.replicas} if live else {}
    by_problem: dict[str, list[str]] = defaultdict(list)
    for replica in evidence.replicas:
        if replica.problem:
            told = routed.get(replica.name)
            where = ", though the router does reach it" if told and told.usable else ""
            by_problem[f"{replica.problem}{where}"].append(replica.name)
    for problem, names in by_problem.items():
        findings.append(_unanswered(names, problem, len(evidence.replicas)))
    answered = {replica.name for replica in evidence.reached if replica.ready}
    unanswered = {replica.name for replica in evidence.replicas if replica.problem}
    findings += _by_state([one for one in routed.values() if one.name not in unanswered], answered)
    usable = sum(one.usable for one in routed.values())
    parts = (
        [f"{len(evidence.reached)} of {counted(len(evidence.replicas), 'replica')} asked"]
        if evidence.replicas
        else []
    )
    parts += [f"{usable} of {len(routed)} usable to the router"] if live else []
    return Verdict("; ".join(parts), tuple(findings))


def models(evidence: Evidence) -> Verdict:
    """Look for models that nobody serves, and for those without a tokenizer."""
    served = _served(evidence)
    config, live = evidence.config, evidence.live
    if not served:
        return passed_over("no replica tells its models")
    findings: list[Finding] = []
    if config is not None and not any(replica.problem for replica in evidence.replicas):
        for model in config.models:
            if model not in served:
                close = get_close_matches(model, served, 1)
                findings.append(
                    wrong(
                        f"no replica serves {model}",
                        f"models.{model} is configured; served: {named(list(served))}",
                        "requests for it fail, and what is set for it is used for no other name",
                        f"did you mean {close[0]}?"
                        if close
                        else "name it as replicas do (GET /v1/models), or drop it",
                    )
                )
    findings += _without_tokenizer(evidence)
    if config is None and live is not None:
        tiers = live.figures.by("kvring_prompts_total", "tier")
        told = sum(tiers.values())
        if tiers.get("bytes", 0) > 0.01 * told:
            findings.append(
                note(
                    "prompts are named by bytes",
                    f"{tiers['bytes']:,.0f} of {told:,.0f} prompts were named without a tokenizer",
                    "such names compare only with replicas that name by bytes too, and lengths are estimated",
                    "set models.MODEL.tokenizer_directory; very long bodies are by bytes above"
                    " limits.tokenised_bytes",
                )
            )
    return Verdict(named(list(served)), tuple(findings))


def _silent(kind: str, why: str) -> Finding:
    return wrong(
        f"the source {kind} does not tell members",
        why,
        "replicas that come or go are not seen, and a router that starts now has none of them",
        _SOURCE_MENDS.get(kind, "see the router's log"),
    )


def _unanswered(names: Sequence[str], problem: str, asked: int) -> Finding:
    all_of_them = len(names) == asked > 1
    return wrong(
        f"{counted(len(names), 'replica')} {'does' if len(names) == 1 else 'do'} not answer: {named(names)}",
        problem,
        "nobody can be sent there"
        + (", or this machine merely cannot reach the fleet's network" if all_of_them else ""),
        "check that it runs, that its url is right and that network policies let this machine in",
    )


def _by_state(routed: Sequence[RoutedReplica], answered: set[str]) -> list[Finding]:
    findings = []
    for state, mend in _STATE_MENDS.items():
        names = [one.name for one in routed if one.state == state]
        if not names:
            continue
        here = [name for name in names if name in answered]
        if here:
            mend = f"{named(here)} answers from here: look at the network between router and replica; {mend}"
        told = (
            f"the router does not use {counted(len(names), 'replica')}: {named(names)}",
            f"{state} of {counted(len(routed), 'replica')}",
            "the others take its load, and compute again what it holds",
            mend,
        )
        findings.append(warning(*told) if state == "joining" else wrong(*told))
    draining = [one.name for one in routed if one.state == "draining"]
    if draining:
        findings.append(
            note(
                f"{counted(len(draining), 'replica')} drains: {named(draining)}",
                "it ends what it runs and takes nothing new",
                "nothing, where that is meant",
                "nothing, or see why it was told to end",
            )
        )
    return findings


def _served(evidence: Evidence) -> dict[str, None]:
    found: dict[str, None] = {}
    for replica in evidence.reached:
        found.update(dict.fromkeys(replica.models))
    for routed in evidence.live.replicas if evidence.live else ():
        found.update(dict.fromkeys(routed.models))
    return found


def _without_tokenizer(evidence: Evidence) -> list[Finding]:
    """Return what is lost for engines; a replica of ours says itself what it names by."""
    if evidence.config is None or evidence.namers is None:
        return []
    findings = []
    for model, replicas_of_it in evidence.by_model().items():
        if not model or evidence.namers.by_tokens(model) is not None:
            continue
        ours = [one for one in replicas_of_it if one.state is not None]
        if any(one.state and one.state.chain.kind == "tokens" for one in ours):
            # That they differ is told where names are compared.
            continue
        told = (
            f"{model} has no tokenizer here",
            f"prompts for {counted(len(replicas_of_it), 'replica')} are named by bytes",
            "lengths are estimated" + ("" if ours else ", and neither digests nor KV events can be used"),
            f'set tokenizer_directory under [models."{model}"] to a directory with tokenizer.json'
            " and chat template",
        )
        findings.append(note(*told) if ours else warning(*told))
    return findings
