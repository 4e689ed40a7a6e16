"""The checks, in the order in which they are told: what cannot work before what works badly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from loadgen.doctor.checks.cache import cached_tokens, prefix_caching
from loadgen.doctor.checks.clocks import clocks
from loadgen.doctor.checks.configuration import configuration, open_port, seed, session_key
from loadgen.doctor.checks.digests import digests
from loadgen.doctor.checks.events import events
from loadgen.doctor.checks.hits import hits, layout, predictions, salts
from loadgen.doctor.checks.members import members, models, replicas
from loadgen.doctor.checks.names import replicas_alike, router_and_replicas
from loadgen.doctor.checks.redis import redis
from loadgen.doctor.checks.ring import load_spread, names, ring
from loadgen.doctor.checks.router import router
from loadgen.doctor.checks.streams import streams
from loadgen.doctor.evidence import Evidence
from loadgen.doctor.finding import Verdict


@dataclass(frozen=True, slots=True)
class Check:
    """One check. `name` is stable; `asks` is what holds where all is well."""

    name: str
    asks: str
    look: Callable[[Evidence], Verdict]


CHECKS = (
    Check("configuration", "the configuration can be used", configuration),
    Check("router", "the router is ready, and runs these options", router),
    Check("members", "members of the fleet are known", members),
    Check("replicas", "replicas answer and are routed to", replicas),
    Check("models", "models are served, and named by their own tokenizer", models),
    Check("names", "routers and replicas name blocks alike", router_and_replicas),
    Check("alike", "replicas of one model are alike", replicas_alike),
    Check("prefix_caching", "engines keep prefixes in cache", prefix_caching),
    Check("cached_tokens", "answers tell how many tokens were cached", cached_tokens),
    Check("digests", "what replicas hold is known, and fresh", digests),
    Check("events", "KV events arrive", events),
    Check("hits", "prompts find their cache", hits),
    Check("predictions", "replicas hold what is expected of them", predictions),
    Check("layout", "prompts keep their beginning", layout),
    Check("salts", "equal prompts share one salt", salts),
    Check("session_key", "a session keeps its key over its turns", session_key),
    Check("ring_names", "each replica has a name of its own", names),
    Check("ring", "the ring shares conversations out evenly", ring),
    Check("load", "replicas compute about the same", load_spread),
    Check("streams", "tokens reach clients one by one", streams),
    Check("redis", "Redis answers, fast and safely", redis),
    Check("clocks", "clocks agree", clocks),
    Check("open_port", "clients cannot reach the control surface", open_port),
    Check("seed", "names of blocks cannot be guessed", seed),
)
