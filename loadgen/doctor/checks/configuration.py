"""Checks that a file alone can answer: whether it is usable, what it opens, and what it names."""

from __future__ import annotations

import re
from ipaddress import ip_address

from loadgen.doctor.evidence import Evidence
from loadgen.doctor.finding import Finding, Verdict, note, passed_over, warning, wrong
from router.chain.options import ChainOptions

_NO_CONFIG = "no --config"
_DEFAULT_SEED = ChainOptions.model_fields["seed"].default

# Policies that read the session.
_BY_SESSION = frozenset({"session_ring", "kvaware"})
_NEW_EACH_TIME = re.compile(
    r"request-?id|correlation-?id|trace|span|idempotency|^cf-ray$|^x-amzn-requestid$", re.IGNORECASE
)
_SAME_FOR_ALL = frozenset(
    {
        "accept",
        "authorization",
        "content-type",
        "host",
        "origin",
        "user-agent",
        "x-api-key",
        "x-forwarded-host",
    }
)
_LATER_TURNS = ("2", "3", "4-7", "8+")
_ENOUGH_TOKENS = 5_000


def configuration(evidence: Evidence) -> Verdict:
    """Hold the file to what the router would say at its start."""
    if evidence.config is None and not evidence.config_problems:
        return passed_over(_NO_CONFIG)
    findings = tuple(
        wrong(
            "the configuration cannot be used",
            problem,
            "a router refuses to start with it, and one that runs refuses to reload it",
            f"mend {_option(problem)} in the file; the README and `kvring router --help` tell the options",
        )
        for problem in evidence.config_problems
    )
    return Verdict("the file, its policies and its tokenizers", findings)


def open_port(evidence: Evidence) -> Verdict:
    """Look for metrics, explanations and the page on a port that clients reach."""
    config = evidence.config
    if config is None and not evidence.public_control:
        return passed_over(f"{_NO_CONFIG}, and nothing seen at --api-url")
    findings: list[Finding] = []
    costs = "anybody who may send requests can read the fleet, its load and its metrics there"
    explains = config is not None and config.observe.explain
    if explains:
        costs += ", and with observe.explain can ask which prompts are cached, those of other tenants too"
    mend = (
        'give control a port of its own, such as control.port = 9090 with control.host = "127.0.0.1"'
        " or a pod's"
    )
    if evidence.public_control:
        findings.append(
            warning(
                "the control surface answers where clients come in",
                f"{evidence.public_control}/debug/fleet answers",
                costs,
                mend,
            )
        )
    elif config is not None and config.control.port is None and not _loopback(config.listen.host):
        told = (
            "the control surface is on the port of the API",
            f"listen.host is {config.listen.host}, control.port is not set, observe.explain is"
            f" {'on' if explains else 'off'}",
            costs,
            mend,
        )
        findings.append(warning(*told) if explains else note(*told))
    return Verdict("where the control surface is served", tuple(findings))


def seed(evidence: Evidence) -> Verdict:
    """Tell of a seed that everybody knows."""
    config = evidence.config
    if config is None:
        return passed_over(_NO_CONFIG)
    if config.chain.seed != _DEFAULT_SEED or _loopback(config.listen.host):
        return Verdict("chain.seed")
    other_keys = (
        evidence.live.figures.total("kvring_uncached_tokens_total", cause="key_mismatch")
        if evidence.live
        else 0
    )
    tenants = f"; {other_keys:,.0f} prompt tokens came under more than one salt" if other_keys else ""
    return Verdict(
        "chain.seed",
        (
            note(
                "the seed of the names of blocks is the default",
                f"chain.seed is the one that everybody knows, and clients come from other machines{tenants}",
                "where several tenants share the fleet, one who sees names of blocks can tell"
                " what they stand for",
                "set chain.seed to a secret of this deployment, the same for routers and replicas",
            ),
        ),
    )


def session_key(evidence: Evidence) -> Verdict:
    """Look for a session's key that changes with each request, by its name and by what comes of it."""
    config, live = evidence.config, evidence.live
    if config is None and live is None:
        return passed_over("neither --config nor a live router")
    findings: list[Finding] = []
    if config is not None:
        acting = config.policy.name in _BY_SESSION
        shadows = [shadow.name for shadow in config.observe.shadow if shadow.policy in _BY_SESSION]
        reader = f"policy {config.policy.name}" if acting else f"shadow {', '.join(shadows)}"
        finding = _header(config.sessions.header, reader, acting, bool(shadows))
        findings += [finding] if finding else []
    if live is not None and live.policy == "session_ring":
        finding = _moved(evidence)
        findings += [finding] if finding else []
    return Verdict("sessions.header, and where turns of one conversation went", tuple(findings))


def _header(header: str, reader: str, acting: bool, shadowed: bool) -> Finding | None:
    if _NEW_EACH_TIME.search(header):
        title = "the session's key is an id of single requests"
        costs = "every turn of a conversation counts as a new session, and goes where its cache is not"
    elif header.lower() in _SAME_FOR_ALL:
        title = "the session's key is the same for many clients"
        costs = "all of them count as one session, and go to one replica"
    else:
        return None
    mend = 'name a header that a conversation keeps, such as sessions.header = "x-session-id"'
    if acting or shadowed:
        seen = f"sessions.header is {header}, and {reader} goes by it"
        return wrong(title, seen, costs, mend) if acting else warning(title, seen, costs, mend)
    return note(
        title, f"sessions.header is {header}; no policy in use goes by it", f"once one does, {costs}", mend
    )


def _moved(evidence: Evidence) -> Finding | None:
    """Return what is wrong where session_ring, which never looks at load, leaves what it should keep."""
    assert evidence.live is not None
    figures = evidence.live.figures
    asked = figures.over("kvring_turn_prompt_tokens_total", "turn", _LATER_TURNS)
    hit = figures.over("kvring_turn_hit_tokens_total", "turn", _LATER_TURNS)
    elsewhere = figures.total("kvring_uncached_tokens_total", cause="routed_by_load")
    if asked < _ENOUGH_TOKENS or hit / asked >= 0.3 or elsewhere < 0.3 * asked:
        return None
    return wrong(
        "turns of one conversation come under different session keys",
        f"of {asked:,.0f} prompt tokens in second and later turns only {hit / asked:.0%} were cached, while"
        f" {elsewhere:,.0f} were held by another replica; session_ring alone never moves a session",
        "every turn computes its whole conversation again",
        "have clients send the same value of sessions.header with all turns of a conversation,"
        " or use policy affinity",
    )


def _option(problem: str) -> str:
    name = problem.partition(":")[0]
    return name if re.fullmatch(r"[A-Za-z0-9_. -]{1,200}", name) else "it"


def _loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
