"""Checks that engines cache prefixes, and that their answers say how much was cached."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from loadgen.doctor.evidence import Evidence, StreamSeen
from loadgen.doctor.finding import Finding, Verdict, counted, named, passed_over, warning, wrong

_TELL_MENDS = {
    "vllm": "start vLLM with --enable-prompt-tokens-details",
    "sglang": "start SGLang with --enable-cache-report",
    "trtllm": "take a TensorRT-LLM whose usage has prompt_tokens_details",
    "llamacpp": "take a llama.cpp server whose usage has prompt_tokens_details",
    "kvring": "kvring replicas always tell: something between router and replica takes it out of `usage`",
}
_TELL_ANY = (
    "have the engine tell usage.prompt_tokens_details.cached_tokens: vLLM --enable-prompt-tokens-details,"
    " SGLang --enable-cache-report"
)
_CACHE_MENDS = {
    "vllm": "start vLLM with --enable-prefix-caching (and without --no-enable-prefix-caching)",
    "sglang": "start SGLang without --disable-radix-cache",
    "kvring": "start the replica with enable_prefix_caching = true",
    "trtllm": "set kv_cache_config.enable_block_reuse to true",
    "llamacpp": "keep cache_prompt on, and give the server slots enough (--parallel)",
}
_CACHE_ANY = "turn prefix caching on in the engine"
_TELL_COSTS = (
    "hits cannot be counted: the hit ratio reads too low, misses are not explained, and it"
    " cannot be told whether"
    " routing works"
)
_ENOUGH_REQUESTS = 10


def cached_tokens(evidence: Evidence) -> Verdict:
    """Look at flags, at what the router counted, and at trials."""
    live = evidence.live
    flagged = [replica for replica in evidence.reached if replica.tells_cached is not None]
    tried = [stream for trial in evidence.trials for stream in (trial.first, trial.second) if _whole(stream)]
    if not flagged and live is None and not tried:
        return passed_over("needs a live router, or --probe")
    silent: dict[str, str] = {}
    for stream in tried:
        if stream and stream.cached_tokens is None:
            silent[stream.replica or stream.url] = "a request that was tried did not tell"
    counted_ok = live.figures.by("kvring_requests_total", "replica", outcome="ok") if live else {}
    unreported = live.figures.by("kvring_hit_unreported_total", "replica") if live else {}
    for name, answers in counted_ok.items():
        untold = unreported.get(name, 0)
        if answers >= _ENOUGH_REQUESTS and untold > 0.5 * answers:
            silent[name] = f"{untold:,.0f} of {answers:,.0f} answers did not tell"
    for replica in flagged:
        if replica.tells_cached is False:
            silent[replica.name] = "enable_cache_report is off"
    answers = sum(counted_ok.values())
    return Verdict(
        f"{counted(round(answers), 'answer')}, {counted(len(tried), 'trial')}",
        tuple(
            _grouped(
                evidence,
                silent,
                "answers do not tell how many tokens were cached",
                _TELL_COSTS,
                _TELL_MENDS,
                _TELL_ANY,
            )
        ),
    )


def prefix_caching(evidence: Evidence) -> Verdict:
    """Look at what engines say of themselves, and at the same prompt sent twice."""
    told = [replica for replica in evidence.reached if replica.prefix_caching is not None]
    twice = [
        (trial.first, trial.second)
        for trial in evidence.trials
        if trial.second and _whole(trial.second) and trial.second.cached_tokens is not None
    ]
    if not told and not twice:
        return passed_over("no engine says so; --probe would tell")
    off = {replica.name: "it says so itself" for replica in told if replica.prefix_caching is False}
    costs = "every prompt is computed from its beginning, whatever is routed where"
    findings = _grouped(evidence, off, "prefix caching is off", costs, _CACHE_MENDS, _CACHE_ANY)
    for first, second in twice:
        if second.cached_tokens == 0 and second.replica not in off and not off:
            findings.append(_missed(evidence, first, second))
    return Verdict(
        f"{counted(len(told), 'replica')} told, {counted(len(twice), 'prompt')} sent twice", tuple(findings)
    )


def _missed(evidence: Evidence, first: StreamSeen, second: StreamSeen) -> Finding:
    prompt = f"a prompt of {second.prompt_tokens or 0:,} tokens was sent twice to {second.url}"
    if first.replica != second.replica:
        return warning(
            "the same prompt went to two replicas",
            f"{prompt}, and went to {first.replica} and then to {second.replica}",
            "a conversation that moves is computed again",
            "policy affinity keeps conversations together unless one is busy; see `kvring explain`",
        )
    kind = evidence.engine_of(second.replica)
    return wrong(
        "the same prompt twice, and nothing came from cache",
        f"{prompt}{f' and reached {second.replica}' if second.replica else ''}: 0 tokens were cached",
        "every turn computes its whole conversation again",
        f"{_CACHE_MENDS.get(kind, _CACHE_ANY)}; or its cache is too small to hold a prompt for a second",
    )


def _grouped(
    evidence: Evidence,
    silent: dict[str, str],
    title: str,
    costs: str,
    mends: dict[str, str],
    otherwise: str,
) -> list[Finding]:
    """Return a finding an engine, however many replicas it has."""
    by_mend: dict[str, list[str]] = defaultdict(list)
    for name in silent:
        by_mend[mends.get(evidence.engine_of(name), otherwise)].append(name)
    return [
        wrong(
            f"{title}: {named(names)}", _few(f"{name}: {silent[name]}" for name in sorted(names)), costs, mend
        )
        for mend, names in by_mend.items()
    ]


def _few(lines: Iterable[str], most: int = 3) -> str:
    told = list(lines)
    return "; ".join(told[:most]) + (f"; and {len(told) - most} more" if len(told) > most else "")


def _whole(stream: StreamSeen | None) -> bool:
    return stream is not None and not stream.problem and stream.prompt_tokens is not None
