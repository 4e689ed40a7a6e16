"""The relay: walks down a ranking until a replica answers, and passes that answer on."""

from __future__ import annotations

from time import monotonic

import aiohttp
from aiohttp import web
from multidict import CIMultiDict

from router.config import LimitOptions, ObserveOptions
from router.fleet.fleet import Fleet
from router.fleet.load import Lease
from router.fleet.replica import Replica
from router.gateway.answer import Answer
from router.gateway.headers import own_headers, towards_replica
from router.gateway.passage import Passage
from router.gateway.timing import prefill_seconds
from router.gateway.upstream import Refused, Stopped, Upstream, UpstreamError, Vanished
from router.gateway.walk import Attempt, Walk
from router.observe.metrics import RouterMetrics
from router.observe.outcome import Outcome
from router.observe.witness import Decision, Witness
from router.placement.ask import Choice
from router.wire.errors import RAN_HEADER, TURNED_AWAY, ApiError
from router.wire.report import ORCA_HEADER, LoadReport


class Relay:
    """Dispatches requests. The witness is told of each that a replica accepted."""

    def __init__(
        self,
        fleet: Fleet,
        upstream: Upstream,
        witness: Witness,
        policy_name: str,
        limits: LimitOptions,
        observe: ObserveOptions,
        metrics: RouterMetrics,
    ) -> None:
        self._fleet = fleet
        self._upstream = upstream
        self._witness = witness
        self._policy_name = policy_name
        self._limits = limits
        self._observe = observe
        self._metrics = metrics

    async def run(self, passage: Passage) -> web.StreamResponse:
        """Answer the request; ApiError where no replica does, Unreached where none could be connected to."""
        request, outcome = passage.request, passage.outcome
        headers = towards_replica(request.headers, request.remote, outcome.request_id)
        decision = passage.decision
        assert decision is not None
        ranking = decision.ranking
        walk = Walk(min(self._limits.attempts, len(ranking)))
        while walk.to_try:
            choice = ranking[walk.next()]
            replica = self._fleet.by_name(choice.name)
            if replica is None:
                continue
            attempt = self._begin(passage, decision, choice, replica, headers)
            try:
                url = replica.url + request.path_qs
                answer = await self._upstream.send(url, passage.prepared.body, headers, walk.fresh)
                try:
                    if not self._turned_away(attempt, answer, walk):
                        return await self._pass_on(attempt, answer)
                finally:
                    # Wholly read, the connection is back in the pool already; else nobody wants the rest.
                    answer.close()
            except UpstreamError as error:
                self._failed(attempt, error, walk)
            finally:
                replica.load.close(attempt.lease)
        raise walk.end(outcome) from walk.error

    def _begin(
        self,
        passage: Passage,
        decision: Decision,
        choice: Choice,
        replica: Replica,
        headers: CIMultiDict[str],
    ) -> Attempt:
        outcome = passage.outcome
        outcome.attempts += 1
        outcome.replica, outcome.reason = choice.name, choice.reason
        outcome.expected_tokens = choice.expected_tokens
        passage.trace.sending(choice, outcome.attempts, headers)
        lease = replica.load.open(choice.prefill_seconds, monotonic(), outcome.prompt_tokens)
        return Attempt(passage, decision, choice, replica, lease)

    def _turned_away(self, attempt: Attempt, answer: aiohttp.ClientResponse, walk: Walk) -> bool:
        """Take in that there is an answer; say whether it is only that another should be asked."""
        report = LoadReport.from_orca(answer.headers.get(ORCA_HEADER, ""))
        attempt.replica.load.answered(attempt.lease, report, monotonic())
        walk.untouched = False
        ran = RAN_HEADER in answer.headers
        if answer.status not in TURNED_AWAY or not walk.to_try or (ran and walk.ran_once):
            return False
        walk.ran_once = walk.ran_once or ran
        self._note_failover(attempt, str(answer.status))
        return True

    def _failed(self, attempt: Attempt, error: UpstreamError, walk: Walk) -> None:
        """Take in that there is no answer; ApiError where no other may be asked."""
        walk.error = error
        health = attempt.replica.health
        if isinstance(error, Refused):
            health.unreachable()
            attempt.decision.not_reached(attempt.choice.name)
            self._note_failover(attempt, "refused")
            return
        walk.untouched = False
        if isinstance(error, Vanished):
            if walk.ran_once:
                health.unreachable()
                raise walk.end(attempt.passage.outcome) from error
            walk.ran_once = True
            self._note_failover(attempt, "vanished")
            if error.reused:
                # Most likely only the idle connection was closed: the same replica, on a new one.
                walk.once_more()
            else:
                health.unreachable()
                attempt.decision.not_reached(attempt.choice.name)
            return
        if not isinstance(error, Stopped):
            health.answer_failed(monotonic())
        raise walk.end(attempt.passage.outcome) from error

    async def _pass_on(self, attempt: Attempt, upstream: aiohttp.ClientResponse) -> web.StreamResponse:
        passage, replica = attempt.passage, attempt.replica
        outcome, prepared = passage.outcome, passage.prepared
        outcome.status = upstream.status
        outcome.streamed = upstream.content_type == "text/event-stream"
        outcome.block_tokens = replica.block_tokens
        if upstream.status < 400:
            self._witness.accepted(attempt.decision, attempt.choice, monotonic())
        told = self._observe.response_headers
        answer = Answer(
            upstream,
            self._limits,
            own_headers(outcome.request_id, attempt.choice, self._policy_name, prepared.tier, told),
            prepared.choices,
            lambda: self._heard(attempt),
            self._upstream.is_cutting,
        )
        try:
            response = await answer.pass_on(passage.request, prepared.usage_asked)
        except ApiError:
            replica.health.answer_failed(monotonic())
            raise
        self._read(answer, outcome)
        self._judge(attempt, answer)
        return response

    def _heard(self, attempt: Attempt) -> None:
        """Take in that bytes came."""
        passage, replica = attempt.passage, attempt.replica
        replica.health.heard(monotonic())
        outcome = passage.outcome
        if outcome.first_byte_seconds is None:
            passage.trace.began()
            replica.load.began(attempt.lease)
            passage.end_turn()
            began_at = monotonic()
            outcome.first_byte_seconds = began_at - outcome.arrived_at
            self._witness.began(attempt.decision, began_at)

    def _judge(self, attempt: Attempt, answer: Answer) -> None:
        """Say how an answer ended, and what that tells of its replica."""
        outcome, replica = attempt.passage.outcome, attempt.replica
        status = outcome.status
        if answer.broken_off:
            outcome.result = "broken_off"
            replica.health.answer_failed(monotonic())
        elif status >= 500 and status not in TURNED_AWAY:
            outcome.result = "replica_error"
            replica.health.answer_failed(monotonic())
        elif status >= 400:
            outcome.result = "turned_away" if status in TURNED_AWAY else "client_error"
        elif answer.reader.failed:
            outcome.result = "replica_error"
        else:
            replica.health.answer_succeeded()
            if attempt.passage.prepared.choices == 1 and status == 200:
                self._teach(replica, answer, attempt.lease, outcome)

    def _teach(self, replica: Replica, answer: Answer, lease: Lease, outcome: Outcome) -> None:
        """Let the fleet learn what this prefill took. Hits that are not told are taken as expected."""
        first = outcome.first_byte_seconds
        first_byte_at = outcome.arrived_at + first if outcome.streamed and first is not None else None
        seconds = prefill_seconds(answer.reader, lease, replica.state is not None, first_byte_at)
        if seconds is not None:
            hit = outcome.expected_tokens if outcome.hit_tokens is None else outcome.hit_tokens
            replica.computed(outcome.prompt_tokens, min(hit, outcome.prompt_tokens), seconds)

    def _read(self, answer: Answer, outcome: Outcome) -> None:
        reader = answer.reader
        if reader.prompt_tokens is not None:
            outcome.prompt_tokens = reader.prompt_tokens
        outcome.output_tokens = reader.output_tokens
        outcome.evicted_tokens = reader.evicted_tokens
        if reader.cached_tokens is not None:
            # Never more than the prompt, or what was not hit would not add up.
            outcome.hit_tokens = min(reader.cached_tokens, outcome.prompt_tokens)

    def _note_failover(self, attempt: Attempt, reason: str) -> None:
        attempt.passage.trace.failed_over(reason)
        self._metrics.failovers.labels(attempt.choice.name, reason).inc()
