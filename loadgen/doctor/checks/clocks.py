"""Checks that clocks agree."""

from __future__ import annotations

from loadgen.doctor.evidence import Evidence
from loadgen.doctor.finding import Verdict, counted, named, passed_over, warning
from loadgen.doctor.reach import Skew

_LIMIT_SECONDS = 2.0
_COSTS = (
    "routing goes by ages and not by clocks, so it stays right; but logs, traces and events of"
    " these machines cannot"
    " be laid side by side, and certificates and tokens are taken for expired, or not valid yet"
)
_MEND = "run chrony or systemd-timesyncd there (`timedatectl` says whether it is in step)"


def clocks(evidence: Evidence) -> Verdict:
    """Compare the clocks of replicas, router and Redis with that of this machine."""
    told: dict[str, Skew] = {replica.name: replica.skew for replica in evidence.replicas if replica.skew}
    if evidence.live and evidence.live.skew:
        told["the router"] = evidence.live.skew
    if evidence.redis and evidence.redis.skew:
        told["Redis"] = evidence.redis.skew
    if not told:
        return passed_over("nobody told the time")
    off = {name: skew.seconds for name, skew in told.items() if skew.beyond(_LIMIT_SECONDS)}
    seen = counted(len(told), "clock")
    if not off:
        return Verdict(seen)
    shown = "; ".join(f"{name} by {seconds:+,.0f} s" for name, seconds in sorted(off.items())[:4])
    if len(off) == len(told) > 1 and max(off.values()) - min(off.values()) < 2 * _LIMIT_SECONDS:
        title = "the clock of this machine differs from all others"
        return Verdict(seen, (warning(title, shown, _COSTS, _MEND.replace("there", "here", 1)),))
    return Verdict(
        seen, (warning(f"clocks differ from this machine's: {named(list(off))}", shown, _COSTS, _MEND),)
    )
