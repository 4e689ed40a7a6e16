"""Pick: from a request's body to the replicas that may take it, best first, with their addresses."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic
from uuid import uuid4

import orjson

from router.fleet.fleet import Fleet
from router.gateway.prepare import READERS, Preparer
from router.gateway.serving import Serving
from router.observe.outcome import Outcome
from router.observe.witness import Decision
from router.picker.addresses import Addresses
from router.picker.messages import Head
from router.placement.ask import Ask, Choice, Ranking
from router.wire.errors import ApiError, Source

# Bodies of other requests are looked at for their model up to this size: 3 ms.
_MODEL_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Place:
    """One replica that a request may go to."""

    address: str
    choice: Choice


@dataclass(frozen=True, slots=True)
class Pick:
    """Where one request may go, best first. `decision` is None where there was no prompt to decide by."""

    places: tuple[Place, ...]
    ranking: Ranking
    tier: str = ""
    decision: Decision | None = None

    @property
    def addresses(self) -> list[str]:
        """What the gateway is told."""
        return [place.address for place in self.places]


class Picker:
    """Ranks by the same parts as a router does."""

    def __init__(self, fleet: Fleet, preparer: Preparer, addresses: Addresses) -> None:
        self._fleet = fleet
        self._preparer = preparer
        self._addresses = addresses

    async def pick(self, serving: Serving, head: Head, raw: bytes | None, outcome: Outcome) -> Pick:
        """Pick for a request; ApiError 400 for a body that is none, 404, or 503 where nobody can take it.

        `raw` is None where the body is not known.
        """
        reader = next((path for path in READERS if head.path.endswith(path)), None)
        if raw is None or reader is None:
            return self._without_prompt(serving, head, _model_of(raw or b""), outcome)
        session = head.headers.get(serving.config.sessions.header.lower())
        prepared = await self._preparer.prepare(reader, raw, session)
        outcome.model, outcome.tier = prepared.ask.model, prepared.tier
        outcome.prompt_tokens, outcome.turn = prepared.ask.prompt_tokens, prepared.turn
        now = monotonic()
        view, ranking = serving.decider.decide(prepared.ask, now)
        places = self._places(serving, ranking, head)
        decision = serving.witness.decided(prepared.ask, view, ranking, now, outcome, prepared.prompts)
        return Pick(places, ranking, prepared.tier, decision)

    def _without_prompt(self, serving: Serving, head: Head, model: str, outcome: Outcome) -> Pick:
        """Pick for what has no prompt that could be cached: where the wait is shortest."""
        now = monotonic()
        if model:
            # Its policy may weigh it, without a chain; its length is not known either.
            outcome.model = model
            ask = Ask(model=model, prompt_tokens=1, spread=uuid4().bytes)
            _, ranking = serving.decider.rank(ask, now)
        else:
            waits = [
                (replica.load.view(now).wait_seconds(now), replica.load.in_flight, replica.name)
                for replica in self._fleet.replicas
                if replica.usable
            ]
            if not waits:
                raise _nobody("no replica is usable now")
            ranking = [self._choice(name, wait) for wait, _, name in sorted(waits)]
        return Pick(self._places(serving, ranking, head), ranking)

    def _places(self, serving: Serving, ranking: Ranking, head: Head) -> tuple[Place, ...]:
        """Return the best of a ranking that have an address and are in the gateway's subset."""
        wanted = 1 + serving.config.picker.fallbacks
        places: list[Place] = []
        for index in range(len(ranking)):
            choice = ranking[index]
            replica = self._fleet.by_name(choice.name)
            address = None if replica is None else self._addresses.of(replica.url)
            if address is not None and (head.subset is None or _within(address, head.subset)):
                places.append(Place(address, choice))
                if len(places) == wanted:
                    break
        if not places:
            raise _nobody("none of the replicas that the gateway allows can serve this model now")
        return tuple(places)

    def _choice(self, name: str, wait_seconds: float) -> Choice:
        replica = self._fleet.by_name(name)
        return Choice(name, replica.epoch if replica else "", wait_seconds=wait_seconds, reason="no prompt")

    def place_at(self, address: str, ranking: Ranking) -> Place | None:
        """Return the place of a replica that the gateway chose by itself, None where that is no member."""
        for replica in self._fleet.replicas:
            if replica.name and self._addresses.of(replica.url) == address:
                ranked = (choice for choice in ranking if choice.name == replica.name)
                return Place(address, next(ranked, Choice(replica.name, replica.epoch, reason="gateway")))
        return None


def _nobody(message: str) -> ApiError:
    return ApiError(503, message, source=Source.ROUTER, code="no_replica", retry_after_seconds=2)


def _within(address: str, subset: frozenset[str]) -> bool:
    """Tell whether an address is in a subset, which may name hosts without a port."""
    return address in subset or address.rpartition(":")[0].strip("[]") in subset


def _model_of(raw: bytes) -> str:
    """Return the model that a body of any other kind asks for, empty where it does not say."""
    if len(raw) > _MODEL_BYTES:
        return ""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return ""
    model = body.get("model") if isinstance(body, dict) else None
    return model if isinstance(model, str) else ""
