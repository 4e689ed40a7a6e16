"""Checks that routers and replicas name blocks alike, and that replicas of one model are alike."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from loadgen.doctor.evidence import Evidence, ReplicaSeen
from loadgen.doctor.finding import Finding, Verdict, counted, named, passed_over, warning, wrong
from router.chain.chain import ChainIdentity

_TITLES = {
    "kind": "tokens on one side, bytes on the other",
    "algorithm": "another algorithm",
    "block_tokens": "another block size",
    "root_fingerprint": "another root",
    "tokenizer_fingerprint": "another tokenizer",
    "template_fingerprint": "another chat template",
}
_COSTS = (
    "none of their names compare: digests are not read, what a replica holds is guessed from"
    " what this router sent,"
    " and a router that starts anew finds nothing"
)


def router_and_replicas(evidence: Evidence) -> Verdict:
    """Compare what each replica says of its names with those of the configuration, field by field."""
    compared = {replica.name for replica in evidence.replicas if replica.state and evidence.namers}
    sized = [replica for replica in evidence.reached if replica.facts and replica.facts.block_tokens]
    if not compared and not sized and evidence.live is None:
        return passed_over("needs --config and replicas that answer, or a live router")
    findings = _compared(evidence) if compared else []
    live = evidence.live.replicas if evidence.live else ()
    differ = [one.name for one in live if one.mismatch and one.name not in compared]
    if differ:
        findings.append(
            wrong(
                f"the router names blocks otherwise than {named(differ)}",
                f"it says so of {counted(len(differ), 'replica')}; which field differs is told with --config",
                _COSTS,
                "run kvring doctor with the router's --config, where it reaches the replicas, or"
                " see the router's log",
            )
        )
    findings += _engine_blocks(evidence)
    return Verdict(
        f"{counted(len(compared), 'replica')} compared field by field"
        if compared
        else "what the router tells",
        tuple(findings),
    )


def replicas_alike(evidence: Evidence) -> Verdict:
    """Compare the replicas of each model with one another."""
    several = {model: found for model, found in evidence.by_model().items() if len(found) > 1}
    if not several:
        return passed_over("needs two replicas of one model that answer")
    findings: list[Finding] = []
    for model, found in several.items():
        for what, read, costs, mend, severe in _ALIKE:
            groups: dict[object, list[str]] = defaultdict(list)
            for replica in found:
                if (value := read(replica)) is not None:
                    groups[value].append(replica.name)
            if len(groups) > 1:
                seen = "; ".join(f"{_said(value)}: {named(names)}" for value, names in groups.items())
                told = (f"replicas of {model} differ in {what}", seen, costs, mend)
                findings.append(wrong(*told) if severe else warning(*told))
    return Verdict(", ".join(f"{model}: {len(found)}" for model, found in several.items()), tuple(findings))


def _compared(evidence: Evidence) -> list[Finding]:
    assert evidence.namers is not None
    groups: dict[tuple[str, str, object, object], list[str]] = defaultdict(list)
    for replica in evidence.replicas:
        if replica.state is None:
            continue
        ours, theirs = evidence.namers.identity_of(replica.model), replica.state.chain
        for field in _fields(ours, theirs):
            key = (field, replica.model, getattr(ours, field), getattr(theirs, field))
            groups[key].append(replica.name)
    return [
        wrong(
            f"{_TITLES[field]}: {named(names)} and the router",
            f"{field}: {_said(theirs)} there, {_said(ours)} in this configuration (model {model})",
            _COSTS,
            _mend(field, model, ours, theirs),
        )
        for (field, model, ours, theirs), names in groups.items()
    ]


def _fields(ours: ChainIdentity, theirs: ChainIdentity) -> list[str]:
    differ = [field for field in ChainIdentity.__slots__ if getattr(ours, field) != getattr(theirs, field)]
    if "kind" in differ:
        # Who has no tokenizer has no fingerprint of one either.
        return [field for field in differ if not field.startswith(("tokenizer", "template"))]
    return differ


def _mend(field: str, model: str, ours: object, theirs: object) -> str:
    table = f'[models."{model}"] tokenizer_directory'
    if field == "kind":
        if theirs == "tokens":
            return f"set {table} of the router to the directory that the replica serves, with tokenizer.json"
        return f"give the replica model_directory, or take {table} from the router"
    if field == "algorithm":
        return (
            f'set chain.algorithm = "{theirs}" for routers, or start replicas with --set'
            f" chain.algorithm={ours}"
        )
    if field == "block_tokens":
        return (
            f"set chain.block_tokens = {theirs} for routers, or start replicas with --set"
            f" chain.block_tokens={ours}"
        )
    if field == "root_fingerprint":
        return (
            "give all the same secret: chain.seed of the router (KVRING_CHAIN__SEED) and of the replicas"
            " (KVRING_REPLICA_CHAIN__SEED)"
        )
    if field == "tokenizer_fingerprint":
        return f"have {table} of the router hold the same tokenizer.json as the replica's model_directory"
    return (
        f"have {table} of the router hold the same chat template (chat_template.jinja, or chat_template in"
        " tokenizer_config.json) as the replica's model_directory"
    )


def _engine_blocks(evidence: Evidence) -> list[Finding]:
    """Return engines whose blocks and ours have no common multiple but by chance."""
    if evidence.config is None:
        return []
    size = evidence.config.chain.block_tokens
    odd = [
        replica
        for replica in evidence.reached
        if replica.facts and (theirs := replica.facts.block_tokens) and theirs % size and size % theirs
    ]
    return [
        warning(
            f"blocks of {replica.name} do not fit the router's",
            f"{replica.facts.block_tokens if replica.facts else 0} tokens there,"
            f" chain.block_tokens = {size} here",
            "hits end at other places than expected, so that each is predicted a little too long"
            " or too short",
            "set chain.block_tokens to a size that divides the engine's, or the engine's"
            f" --block-size to {size}",
        )
        for replica in odd
    ]


def _said(value: object) -> str:
    if isinstance(value, ChainIdentity):
        return f"names {value.fingerprint} ({value.kind}, {value.algorithm}, {value.block_tokens} tokens)"
    return "none" if value in ("", None) else str(value)


_ALIKE: tuple[tuple[str, Callable[[ReplicaSeen], object], str, str, bool], ...] = (
    (
        "how they name blocks",
        lambda replica: replica.state.chain if replica.state else None,
        "no router can read the digests of all of them, and conversations lose their cache when they move",
        "start all replicas of a model with the same chain.*, tokenizer and chat template; a"
        " rollout may be under way",
        True,
    ),
    (
        "engine",
        lambda replica: replica.kind or None,
        "some tell their load and cache exactly and others by estimate: load is shared out unevenly",
        "serve a model by one engine, or mean it so",
        False,
    ),
    (
        "block size",
        lambda replica: replica.block_tokens,
        "the same prompt hits to different depths",
        "start all with the same block size (vLLM --block-size, SGLang --page-size)",
        False,
    ),
    (
        "context length",
        lambda replica: replica.context_tokens,
        "a long conversation is refused by some of them, and clients are told the shortest",
        "start all with the same length (vLLM --max-model-len, SGLang --context-length)",
        False,
    ),
    (
        "prefix caching",
        lambda replica: replica.prefix_caching,
        "conversations that fall to one without compute everything again",
        "turn it on everywhere (vLLM --enable-prefix-caching, SGLang without --disable-radix-cache)",
        True,
    ),
    (
        "hash algorithm",
        lambda replica: (replica.facts.hash_algorithm or None) if replica.facts else None,
        "nothing here, where names are made of tokens; other readers of their KV events cannot compare them",
        "start all with the same --prefix-caching-hash-algo",
        False,
    ),
    (
        "version",
        lambda replica: (replica.facts.version or None) if replica.facts else None,
        "they may differ in templates, metrics and events; a rollout may be under way",
        "finish the rollout",
        False,
    ),
    (
        "models and adapters served",
        lambda replica: tuple(sorted(replica.models)),
        "requests for an adapter can go to some of them only",
        "load the same adapters everywhere, or mean it so",
        False,
    ),
)
