"""Checks what comes of routing: hits, predictions, and what layouts and salts of prompts cost."""

from __future__ import annotations

from loadgen.doctor.evidence import Evidence
from loadgen.doctor.figures import Figures
from loadgen.doctor.finding import Finding, Verdict, counted, passed_over, warning, wrong
from router.observe.layout.cause import RULES, WORDS, Cause
from router.observe.layout.report import LayoutReport

_LATER_TURNS = ("2", "3", "4-7", "8+")
_ENOUGH_TOKENS = 10_000
_ENOUGH_REQUESTS = 50
_FEW = f"too little traffic yet: fewer than {_ENOUGH_TOKENS:,} prompt tokens whose hits were told"
_ADVICE = {
    "evicted": "larger KV caches, or fewer conversations at once on each replica",
    "routed_by_load": (
        "more replicas, as those that hold the prefixes are too busy; compare policies by `kvring shadow`"
    ),
    "routed_by_membership": "scale and roll out more slowly",
    "stale_digest": "see the findings on digests and on prefix caching",
    "cold": "see what changes in the beginning of prompts: `kvring lint`",
    "key_mismatch": "fewer salts: one a tenant",
    "unknown": "engines that tell more: KV events, or kvring replicas",
    "partial_block": "nothing: blocks hit whole",
}


def hits(evidence: Evidence) -> Verdict:
    """Hold later turns, which extend what was just computed, to what they should find."""
    live = evidence.live
    if live is None:
        return passed_over("no live router")
    figures = live.figures
    asked = figures.over("kvring_turn_prompt_tokens_total", "turn", _LATER_TURNS)
    hit = figures.over("kvring_turn_hit_tokens_total", "turn", _LATER_TURNS)
    if asked < _ENOUGH_TOKENS:
        return passed_over(f"{_FEW}, in second and later turns")
    ratio = hit / asked
    seen = (
        f"of {asked:,.0f} prompt tokens in second and later turns {ratio:.1%} were cached, since the"
        " router started"
    )
    cause, share = _largest_cause(figures)
    why = f"; the most common cause is {cause} ({share:.0%})" if cause else ""
    mend = _ADVICE.get(cause, "`kvring explain` shows a single request")
    costs = "conversations are computed from their beginning at every turn: most of the prefill is wasted"
    if ratio < 0.01:
        return Verdict(seen, (wrong("nothing hits the cache", seen + why, costs, mend),))
    if ratio < 0.3:
        return Verdict(seen, (warning("later turns hardly hit the cache", seen + why, costs, mend),))
    return Verdict(seen)


def predictions(evidence: Evidence) -> Verdict:
    """Compare what was expected in caches with what was there."""
    live = evidence.live
    if live is None:
        return passed_over("no live router")
    prompts = live.figures.by("kvring_prompt_tokens_total", "replica")
    expected = live.figures.by("kvring_expected_hit_tokens_total", "replica")
    hit = live.figures.by("kvring_hit_tokens_total", "replica")
    untold = live.figures.by("kvring_hit_unreported_total", "replica")
    answers = live.figures.by("kvring_requests_total", "replica", outcome="ok")
    enough = [
        name
        for name, tokens in prompts.items()
        if tokens >= _ENOUGH_TOKENS and untold.get(name, 0) <= 0.1 * answers.get(name, 0)
    ]
    if not enough:
        return passed_over(_FEW)
    findings: list[Finding] = []
    for name in sorted(enough):
        wanted, found = expected.get(name, 0) / prompts[name], hit.get(name, 0) / prompts[name]
        if wanted - found <= 0.25:
            continue
        told = (
            f"{name} holds much less than is expected of it",
            f"{wanted:.0%} of its {prompts[name]:,.0f} prompt tokens were expected in its cache,"
            f" {found:.0%} were there",
            "prompts are sent where their cache is not, and waits and prefills are priced wrongly",
            "the router may render or tokenise otherwise than the engine: compare"
            " models.MODEL.tokenizer_directory"
            " with the engine's tokenizer and --chat-template; or its cache is too small, or its"
            " prefix caching off",
        )
        findings.append(wrong(*told) if found < 0.01 else warning(*told))
    return Verdict(f"{counted(len(enough), 'replica')} with traffic enough", tuple(findings))


def layout(evidence: Evidence) -> Verdict:
    """Look at what the lint of live traffic found, above all at what changes in the first block."""
    live = evidence.live
    if live is None or live.layout is None:
        return passed_over(live.why_no_layout if live else "no live router")
    report = live.layout
    if report.requests < _ENOUGH_REQUESTS or report.prompt_tokens < _ENOUGH_TOKENS:
        return passed_over("too little traffic was looked at yet")
    block = evidence.config.chain.block_tokens if evidence.config else 16
    faults = [row for row in report.rows if not row.accepted and row.cause is not Cause.KEYS]
    findings = [
        wrong(
            f"prompts part in their first block: {WORDS[row.cause]}",
            f"{row.where} at character {row.character}, in {row.requests:,.0f} requests;"
            f" {row.lost_ratio:.1%} of all prompt tokens",
            "what stands behind is the same and is computed anew each time: no cache can hold it",
            RULES[row.cause],
        )
        for row in faults
        if row.at_tokens < block and row.lost_ratio > 0.01
    ]
    rest = sum(row.lost_ratio for row in faults if row.at_tokens >= block)
    if rest > 0.05:
        worst = max((row for row in faults if row.at_tokens >= block), key=lambda row: row.lost_ratio)
        findings.append(
            warning(
                "the layout of prompts costs cache hits",
                f"{rest:.1%} of all prompt tokens; most at {worst.where}: {WORDS[worst.cause]}",
                "text that was computed before is computed again",
                f"{RULES[worst.cause]} `kvring lint --url` tells all places",
            )
        )
    return Verdict(f"about {report.requests:,.0f} requests, from a sample", tuple(findings))


def salts(evidence: Evidence) -> Verdict:
    """Look for equal text under different salts."""
    live = evidence.live
    if live is None:
        return passed_over("no live router")
    prompt = live.figures.total("kvring_prompt_tokens_total")
    if prompt < _ENOUGH_TOKENS:
        return passed_over(_FEW)
    lost = live.figures.total("kvring_uncached_tokens_total", cause="key_mismatch")
    seen = f"{lost:,.0f} of {prompt:,.0f} prompt tokens were computed before under another salt or adapter"
    if lost <= 0.1 * prompt:
        return Verdict(seen)
    where = _salted(live.layout)
    return Verdict(
        seen,
        (
            warning(
                "equal prompts come under different salts",
                f"{seen} ({lost / prompt:.0%}){where}",
                "nothing is shared between salts, which is what they are for: too many are a"
                " cache that never hits",
                "one cache_salt a tenant, never one a user or request; and one adapter name for one adapter",
            ),
        ),
    )


def _salted(report: LayoutReport | None) -> str:
    details = sorted({row.detail for row in report.rows if row.cause is Cause.KEYS}) if report else []
    return f"; they differ in: {'; '.join(details[:3])}" if details else ""


def _largest_cause(figures: Figures) -> tuple[str, float]:
    causes = figures.by("kvring_uncached_tokens_total", "cause")
    causes.pop("partial_block", None)
    total = sum(causes.values())
    if not total:
        return "", 0.0
    cause = max(causes, key=lambda name: causes[name])
    return cause, causes[cause] / total
