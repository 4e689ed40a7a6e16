"""Course: one request behind its decision: its lease, what the gateway made of the choice, its outcome."""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic

from router.fleet.fleet import Fleet
from router.fleet.load import Lease
from router.fleet.replica import Replica
from router.gateway.headers import REQUEST_ID_HEADER, own_headers
from router.gateway.serving import Serving
from router.observe.metrics import RouterMetrics
from router.observe.outcome import Outcome
from router.picker.pick import Pick, Picker, Place
from router.wire.errors import TURNED_AWAY
from router.wire.report import ORCA_HEADER, LoadReport

# The replica of requests that the gateway took to who is no member.
_STRANGER = "other"


class Course:
    """Follows one request that was sent somewhere, until `close`."""

    def __init__(
        self,
        pick: Pick,
        picker: Picker,
        serving: Serving,
        fleet: Fleet,
        metrics: RouterMetrics,
        outcome: Outcome,
    ) -> None:
        """Open a lease on the replica that stands first."""
        self._pick = pick
        self._picker = picker
        self._serving = serving
        self._fleet = fleet
        self._metrics = metrics
        self._outcome = outcome
        self._replica: Replica | None = None
        self._lease: Lease | None = None
        self._lean_on(pick.places[0], monotonic())

    def answered(self, status: int, headers: Mapping[str, str], served: str) -> dict[str, str]:
        """Take in the headers of the answer; return those that the client gets beside the replica's own.

        `served` is the address that the gateway used in the end, empty where it does not tell.
        """
        now = monotonic()
        outcome, pick = self._outcome, self._pick
        place = self._place_of(served)
        if place is None:
            self._end_lease()
            outcome.status, outcome.replica, outcome.result = status, _STRANGER, "elsewhere"
            return {REQUEST_ID_HEADER: outcome.request_id}
        if place.choice.name != outcome.replica:
            self._lean_on(place, now)
        outcome.status = status
        outcome.streamed = headers.get("content-type", "").startswith("text/event-stream")
        outcome.first_byte_seconds = now - outcome.arrived_at
        if self._replica is not None and self._lease is not None:
            report = LoadReport.from_orca(headers.get(ORCA_HEADER, ""))
            self._replica.load.answered(self._lease, report, now)
            self._replica.load.began(self._lease)
            self._judge(self._replica, status, now, told=bool(served))
        if status < 400 and pick.decision is not None:
            self._serving.witness.accepted(pick.decision, place.choice, now)
            self._serving.witness.began(pick.decision, now)
        return self._own_headers(place)

    def close(self) -> None:
        """Close the lease, and say why what was not hit was not."""
        self._end_lease()
        if self._pick.decision is not None:
            self._serving.witness.ended(self._pick.decision, self._outcome)

    def _end_lease(self) -> None:
        if self._replica is not None and self._lease is not None:
            self._replica.load.close(self._lease)
        self._replica = self._lease = None

    def _place_of(self, served: str) -> Place | None:
        """Return where the request was, and note the replicas that were passed over on the way there."""
        places = self._pick.places
        if not served:
            return places[0]
        place = next((place for place in places if place.address == served), None)
        for passed in places:
            if passed is place:
                break
            self._note_passed(passed)
        self._outcome.attempts = places.index(place) + 1 if place else len(places) + 1
        return place or self._picker.place_at(served, self._pick.ranking)

    def _note_passed(self, place: Place) -> None:
        """Note that the gateway did not get its answer from a replica that it was told to try before."""
        replica = self._fleet.by_name(place.choice.name)
        if replica is not None:
            replica.health.answer_failed(monotonic())
        if self._pick.decision is not None:
            self._pick.decision.not_reached(place.choice.name)
        self._metrics.failovers.labels(place.choice.name, "passed_over").inc()

    def _lean_on(self, place: Place, now: float) -> None:
        """Count the request on a replica, and no longer on the one before."""
        outcome, choice = self._outcome, place.choice
        sent_at = self._lease.at if self._lease is not None else now
        self._end_lease()
        outcome.replica, outcome.reason = choice.name, choice.reason
        outcome.expected_tokens = choice.expected_tokens
        self._replica = self._fleet.by_name(choice.name)
        if self._replica is not None:
            outcome.block_tokens = self._replica.block_tokens
            self._lease = self._replica.load.open(choice.prefill_seconds, sent_at, outcome.prompt_tokens)

    def _judge(self, replica: Replica, status: int, now: float, told: bool) -> None:
        """Note what the answer says of the replica; nothing bad where nobody `told` that it is its own."""
        outcome = self._outcome
        if told:
            replica.health.heard(now)
        if status in TURNED_AWAY:
            outcome.result = "turned_away"
        elif status >= 500:
            outcome.result = "replica_error"
            if told:
                replica.health.answer_failed(now)
        elif status >= 400:
            outcome.result = "client_error"
        elif told:
            replica.health.answer_succeeded()

    def _own_headers(self, place: Place) -> dict[str, str]:
        config, request_id = self._serving.config, self._outcome.request_id
        told = config.observe.response_headers
        return own_headers(request_id, place.choice, config.policy.name, self._pick.tier, told)
