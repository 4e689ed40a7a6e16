"""Checks that nothing between client and replica holds tokens back."""

from __future__ import annotations

from loadgen.doctor.evidence import Evidence, StreamSeen, Trial
from loadgen.doctor.finding import Finding, Verdict, counted, note, passed_over, warning, wrong

_MEND = (
    "turn buffering and compression of text/event-stream off: nginx `proxy_buffering off;` and"
    " `gzip off;` (or the"
    " header X-Accel-Buffering: no); ingress-nginx annotation"
    ' nginx.ingress.kubernetes.io/proxy-buffering: "off";'
    " CDNs and other proxies have a switch of their own"
)
_COSTS = "clients wait for the whole answer before they see its first token"


def streams(evidence: Evidence) -> Verdict:
    """Compare the first token with the whole answer, and with a stream from one step nearer."""
    if not evidence.trials:
        return passed_over("needs --probe, and a model that is served")
    findings = [finding for trial in evidence.trials if (finding := _of(trial)) is not None]
    sent = sum(
        stream is not None
        for trial in evidence.trials
        for stream in (trial.first, trial.second, trial.direct)
    )
    first = evidence.trials[0].second or evidence.trials[0].first
    seen = f"{counted(sent, 'request')} sent"
    if not first.problem:
        seen += f"; first token after {_ms(first.first_seconds)}, whole after {_ms(first.total_seconds)}"
    return Verdict(seen, tuple(findings))


def _of(trial: Trial) -> Finding | None:
    for stream in (trial.first, trial.second):
        if stream is not None and stream.problem:
            return wrong(
                f"a request for {trial.model} fails",
                f"{stream.url}: {stream.problem}",
                "clients get the same",
                "the router's log says why; give --api-key where the address wants one, and --api-url where"
                " --url is a control port",
            )
    second, direct = trial.second, trial.direct
    if second is None or not (trial.first.at_once and second.at_once):
        return None
    seen = f"through {second.url} all {second.answer_tokens} tokens came within {_told(second)}"
    if direct is None or direct.problem or direct.answer_tokens < 8:
        return warning("something seems to hold streams back", seen, _COSTS, _MEND)
    nearer = f"{seen}; through {direct.url}, within {_told(direct)}"
    if direct.spread_seconds > max(0.02, 4 * second.spread_seconds):
        title = f"something between clients and {direct.url} holds streams back"
        return wrong(title, nearer, _COSTS, _MEND)
    if direct.at_once and direct.total_seconds >= 0.5:
        title = "streams come in one piece already from where they are made"
        mend = (
            f"look one step behind {direct.url}: a proxy in front of the engine, or the engine's own"
            " --stream-interval"
        )
        return warning(title, nearer, _COSTS, mend)
    return note(
        "tokens come too fast to tell",
        nearer,
        "whether something holds streams back cannot be seen by so short an answer",
        "try again with a slower model, or under load",
    )


def _told(stream: StreamSeen) -> str:
    return f"{_ms(stream.spread_seconds)} at the end of {_ms(stream.total_seconds)}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.0f} ms"
