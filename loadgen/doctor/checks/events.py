"""Checks that KV events arrive, where they are what tells of caches."""

from __future__ import annotations

from loadgen.doctor.evidence import Evidence, ReplicaSeen
from loadgen.doctor.finding import Finding, Verdict, counted, named, note, passed_over, warning, wrong
from router.engines.capabilities import CAPABILITIES, Matter, Told

_COSTS = "what it holds is guessed from what each router sent there"
_PUBLISH = (
    'vLLM: --kv-events-config \'{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557"}\';'
    " SGLang: --kv-events-config with the same publisher"
)
_CONNECTED = "kvring_event_feed_connected"
_ENOUGH_REQUESTS = 10


def events(evidence: Evidence) -> Verdict:
    """Look at who should publish, and at what the router heard."""
    config, live = evidence.config, evidence.live
    engines = [replica for replica in evidence.reached if replica.facts is not None]
    source = (
        config.fleet.events.source if config else "replica" if live and live.figures.has(_CONNECTED) else ""
    )
    findings: list[Finding] = []
    if source == "off":
        publish = [replica.name for replica in engines if replica.facts and replica.facts.events]
        if not publish:
            return passed_over('fleet.events.source is "off", and no engine says that it publishes')
        return Verdict(counted(len(publish), "engine that publishes"), (_unheard(publish),))
    if source not in ("replica", "sidecar"):
        return passed_over("fleet.events is not known without --config, and the router follows none")
    findings += _unpublished(engines)
    if config is not None:
        findings += _unnameable(evidence, engines)
    if source == "replica":
        findings += _deaf(engines)
        findings += _heard(evidence)
    # What sidecars lack shows where digests are looked at.
    heard = len(live.figures.by(_CONNECTED, "replica")) if live else 0
    return Verdict(
        f"source {source}: {counted(len(engines), 'engine')} asked, {heard} heard by the router",
        tuple(findings),
    )


def _unheard(names: list[str]) -> Finding:
    return note(
        f"{named(names)} publishes KV events that nobody follows",
        'fleet.events.source is "off"',
        "what these caches hold is guessed, though they tell it",
        'set fleet.events.source = "replica", or "sidecar" with many routers; the model needs a'
        " tokenizer_directory",
    )


def _unpublished(engines: list[ReplicaSeen]) -> list[Finding]:
    unable = [
        replica.name
        for replica in engines
        if replica.kind in CAPABILITIES and CAPABILITIES[replica.kind][Matter.KV_EVENTS].told is Told.ABSENT
    ]
    if not unable:
        return []
    return [
        note(
            f"{named(unable)} cannot publish KV events",
            "its engine has none, or is not known",
            _COSTS,
            "nothing; or serve the model by vLLM, SGLang or kvring replicas",
        )
    ]


def _unnameable(evidence: Evidence, engines: list[ReplicaSeen]) -> list[Finding]:
    namers = evidence.namers
    models = {replica.model for replica in engines if namers and namers.by_tokens(replica.model) is None}
    return [
        wrong(
            f"KV events of {model} cannot be used: there is no tokenizer",
            "events tell tokens, and prompts of this model are named by bytes",
            "they are not followed at all, and " + _COSTS,
            f'set tokenizer_directory under [models."{model}"]',
        )
        for model in sorted(models - {""})
    ]


def _deaf(engines: list[ReplicaSeen]) -> list[Finding]:
    deaf = {replica.name: replica.deaf for replica in engines if replica.deaf}
    if not deaf:
        return []
    endpoint, why = next(iter(next(iter(deaf.values())).items()))
    return [
        wrong(
            f"nobody publishes KV events at {named(list(deaf))}",
            f"{endpoint}: {why}",
            _COSTS,
            f"have the engine publish ({_PUBLISH}), and set fleet.events.port where it tells no port; network"
            " policies must let routers in",
        )
    ]


def _heard(evidence: Evidence) -> list[Finding]:
    live = evidence.live
    if live is None:
        return []
    figures, findings = live.figures, list[Finding]()
    connected = figures.by(_CONNECTED, "replica")
    silent = [name for name, up in connected.items() if not up]
    if silent:
        findings.append(
            wrong(
                f"the router hears no KV events of {named(silent)}",
                f"not connected to {counted(len(silent), 'replica')} of {len(connected)}",
                _COSTS,
                f"have the engine publish ({_PUBLISH}); network policies must let routers in",
            )
        )
    batches = figures.by("kvring_event_batches_total", "replica")
    served = figures.by("kvring_requests_total", "replica", outcome="ok")
    quiet = [
        name
        for name, up in connected.items()
        if up and not batches.get(name) and served.get(name, 0) >= _ENOUGH_REQUESTS
    ]
    if quiet:
        findings.append(
            wrong(
                f"{named(quiet)} is connected, and nothing arrives",
                f"no message, though it answered {sum(served[name] for name in quiet):,.0f} requests",
                _COSTS,
                "enable_kv_cache_events must be true in --kv-events-config, and"
                " fleet.events.topic a prefix of the"
                " engine's topic",
            )
        )
    lost = figures.by("kvring_event_dropped_indexes_total", "replica")
    for name, times in figures.by("kvring_event_gaps_total", "replica").items():
        lost[name] = lost.get(name, 0) + times
    lost = {name: times for name, times in lost.items() if times}
    if lost:
        findings.append(
            warning(
                f"KV events were lost: {named(list(lost))}",
                f"{sum(lost.values()):,.0f} times since the router started",
                "what such a replica holds is unknown until it is told anew",
                "give the engine a replay endpoint (replay_endpoint in --kv-events-config,"
                " fleet.events.replay_port), or"
                ' decode once a pod: fleet.events.source = "sidecar"',
            )
        )
    evicted = sum(figures.by("kvring_index_evicted_blocks_total", "replica").values())
    if evicted:
        findings.append(
            note(
                "the index of cached blocks is full",
                f"{evicted:,.0f} blocks were forgotten while replicas still hold them",
                "old prefixes are taken for lost",
                "raise fleet.events.index_blocks to what a replica's cache holds; some 300 bytes each",
            )
        )
    return findings
