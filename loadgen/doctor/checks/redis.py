"""Checks Redis: reachable, fast, writable, and not open to everybody."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit

from loadgen.doctor.evidence import Evidence, RedisSeen
from loadgen.doctor.finding import Finding, Verdict, note, passed_over, warning, wrong
from router.config import RouterConfig


def redis(evidence: Evidence) -> Verdict:
    """Look at Redis from here, and from the router."""
    seen, live = evidence.redis, evidence.live
    used = live is not None and live.redis_up is not None
    if seen is None and not used:
        return passed_over("none is used, or it is not known without --config")
    findings: list[Finding] = []
    config = evidence.config
    leases = config is not None and config.fleet.leases.enabled
    costs = (
        "each router weighs only what it sent itself and what replicas report, so that several herd a little"
    )
    if leases:
        costs = f"{costs}; and members come by leases, so that a router that starts now has none"
    if seen is not None and config is not None:
        findings += _from_here(seen, config, costs)
        findings += _exposed(config)
    if live is not None and live.redis_up is False and not (seen and seen.problem):
        age = live.figures.total("kvring_redis_age_seconds")
        findings.append(
            wrong(
                "the router cannot reach Redis",
                f"it had no answer for {age:,.0f} s" + (", though Redis answers from here" if seen else ""),
                costs,
                "check redis.url as the router has it, its network policy, and redis.timeout_seconds",
            )
        )
    told = f"{seen.place}: {seen.ask_seconds * 1000:.1f} ms a command" if seen and not seen.problem else ""
    return Verdict(told or (seen.place if seen else "what the router tells"), tuple(findings))


def _from_here(seen: RedisSeen, config: RouterConfig, costs: str) -> list[Finding]:
    if seen.problem:
        mend = "check that it runs, redis.url, and that network policies let routers in"
        if any(word in seen.problem for word in ("NOAUTH", "WRONGPASS", "uthentication", "password")):
            mend = "give the right user and password in redis.url: redis://USER:PASSWORD@HOST:PORT/0"
        return [wrong("Redis cannot be used", f"{seen.place}: {seen.problem}", costs, mend)]
    findings: list[Finding] = []
    if seen.read_only:
        findings.append(
            wrong(
                "Redis does not take writes",
                f"{seen.place}: {seen.read_only}",
                costs,
                "point redis.url at the primary (a failover may have made this one a copy), or"
                " let its user run scripts"
                " on keys that begin with kvring:",
            )
        )
    limit = config.redis.timeout_seconds
    if seen.ask_seconds > limit / 2:
        told = (
            "Redis is slow",
            f"{seen.ask_seconds * 1000:.0f} ms a command; routers wait redis.timeout_seconds ="
            f" {limit:g} s for it",
            costs,
            "put it near the routers, look for slow commands of others (SLOWLOG), or raise"
            " redis.timeout_seconds:"
            " no request waits for it",
        )
        findings.append(wrong(*told) if seen.ask_seconds > limit else warning(*told))
    return findings


def _exposed(config: RouterConfig) -> list[Finding]:
    parts = urlsplit(config.redis.url.get_secret_value())
    host = parts.hostname or "localhost"
    if parts.scheme == "unix" or _loopback(host):
        return []
    if not parts.password:
        return [
            warning(
                "Redis is used over the network without a password",
                f"redis.url names {host} and no password",
                "whoever reaches it can change counts of load, or register a replica of their"
                " own and be sent prompts",
                "set a password (requirepass, or an ACL user) and give it in redis.url, from a Secret; use rediss://",
            )
        ]
    if parts.scheme != "rediss":
        return [
            note(
                "the password of Redis crosses the network in the clear",
                f"redis.url is {parts.scheme}:// to {host}",
                "who can listen on that network learns it",
                "use rediss://, or keep it on a network of its own",
            )
        ]
    return []


def _loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
