"""Checks the ring: names that differ, even shares, and whether load really is shared out so."""

from __future__ import annotations

from collections import Counter, defaultdict
from math import log, sqrt

from loadgen.doctor.evidence import Evidence
from loadgen.doctor.finding import Finding, Verdict, counted, named, note, passed_over, warning, wrong
from router.placement.ring import Ring

KEYS = 20_000
# Rings of 160 virtual nodes a replica stay below this with 3 to 16 of them; 20 virtual nodes do not.
_MOST_TIMES_FAIR = 1.25
_VIRTUAL_NODES = 160
_ENOUGH_TOKENS = 50_000


def names(evidence: Evidence) -> Verdict:
    """Look for two replicas of one name, and for one replica under two."""
    told = [replica for replica in evidence.reached if replica.name]
    if not told:
        return passed_over("no replica that answers is known from here")
    findings: list[Finding] = []
    by_name: dict[str, list[str]] = defaultdict(list)
    by_uid: dict[str, list[str]] = defaultdict(list)
    for replica in told:
        uid = replica.state.uid if replica.state else ""
        by_name[replica.name].append(uid or replica.url)
        if uid:
            by_uid[uid].append(f"{replica.name} ({replica.url})")
    for name, uids in by_name.items():
        if len(set(uids)) > 1:
            findings.append(
                wrong(
                    f"{len(uids)} replicas are called {name}",
                    f"their processes are {named(uids)}",
                    "the ring goes by names: one of them gets another name by its address, and"
                    " its conversations move"
                    " whenever the two come up in another order",
                    "give each replica a name of its own (--name, KVRING_REPLICA_NAME), such as its pod's",
                )
            )
    for uid, places in by_uid.items():
        if len(places) > 1:
            findings.append(
                wrong(
                    "one replica is listed twice",
                    f"{named(places)} are one process ({uid})",
                    "nothing is sent to its second address, and the fleet is smaller than it looks",
                    "list each replica once: look at fleet.replicas, and at sources that overlap",
                )
            )
    return Verdict(counted(len(told), "replica"), tuple(findings))


def ring(evidence: Evidence) -> Verdict:
    """Measure the share of the busiest replica of each model over many keys."""
    fleets = _fleets(evidence)
    if not fleets:
        return passed_over("no replica is known by name")
    findings: list[Finding] = []
    told = []
    for model, members in fleets.items():
        if len(members) == 1:
            findings.append(
                note(
                    f"{model or 'the fleet'} has one replica",
                    f"only {members[0]} serves it",
                    "there is nothing to choose, and nobody to fall back on",
                    "add a second one",
                )
            )
            continue
        busiest, times = busiest_of(members)
        told.append(f"{model or 'all'}: {times:.2f} times a fair share at most")
        if times > _most_times_fair(len(members)):
            findings.append(
                warning(
                    f"the ring is uneven: {busiest} gets too much",
                    f"{times:.2f} times a fair share of {KEYS:,} keys, with {len(members)}"
                    f" replicas of {model or 'one model'}",
                    "policies that go by the ring alone load it so much more than the others",
                    "rename one replica and look again, as places on the ring go by names; or"
                    " use policy affinity,"
                    " which weighs queues as well",
                )
            )
    return Verdict("; ".join(told) or "one replica a model", tuple(findings))


def load_spread(evidence: Evidence) -> Verdict:
    """Compare what replicas really computed."""
    live = evidence.live
    if live is None:
        return passed_over("no live router")
    usable = {replica.name: replica.models for replica in live.replicas if replica.usable}
    computed = {
        name: tokens
        for name, tokens in live.figures.by("kvring_uncached_tokens_total", "replica").items()
        if name in usable
    }
    findings: list[Finding] = []
    by_model: dict[str, list[str]] = defaultdict(list)
    for name, models in usable.items():
        by_model[models[0] if models else ""].append(name)
    for model, members in by_model.items():
        total = sum(computed.get(name, 0) for name in members)
        if len(members) < 2 or total < _ENOUGH_TOKENS:
            continue
        busiest = max(members, key=lambda name: computed.get(name, 0))
        share = computed[busiest] / total
        if share * (len(members) + 1) > 2:
            findings.append(
                warning(
                    f"{busiest} computes far more than its share",
                    f"{share:.0%} of {total:,.0f} computed tokens, with {len(members)} replicas of {model}",
                    "requests wait there while others are idle",
                    "usual causes: a replica that joined late, one prefix that all share, a"
                    " session key that is the same"
                    " for all, or a policy that looks at prefixes only: try affinity, or a"
                    " shadow, and compare",
                )
            )
    total = sum(computed.values())
    if total < _ENOUGH_TOKENS or len(usable) < 2:
        return passed_over(f"needs two usable replicas and {_ENOUGH_TOKENS:,} computed tokens")
    return Verdict(f"{total:,.0f} computed tokens on {counted(len(usable), 'replica')}", tuple(findings))


def busiest_of(members: list[str]) -> tuple[str, float]:
    """Return which replica the ring sends most keys to, and how many times a fair share that is."""
    hash_ring = Ring(members)
    homes = Counter(next(hash_ring.walk(b"conversation %d" % index)) for index in range(KEYS))
    name, keys = homes.most_common(1)[0]
    return name, keys * len(hash_ring.names) / KEYS


def _most_times_fair(members: int) -> float:
    """Return what the largest of so many shares hardly exceeds by chance, over so many keys."""
    deviation = sqrt(1 / _VIRTUAL_NODES + members / KEYS)
    return max(_MOST_TIMES_FAIR, 1 + deviation * (sqrt(2 * log(members)) + 1))


def _fleets(evidence: Evidence) -> dict[str, list[str]]:
    """Return the names of the replicas of each main model; those of the router where it tells."""
    found: dict[str, set[str]] = defaultdict(set)
    if evidence.live is not None:
        for routed in evidence.live.replicas:
            found[routed.models[0] if routed.models else ""].add(routed.name)
    else:
        for model, replicas in evidence.by_model().items():
            found[model].update(replica.name for replica in replicas)
        if not found and evidence.config is not None:
            found[""].update(replica.name for replica in evidence.config.fleet.replicas)
    return {model: sorted(members) for model, members in found.items() if members}
