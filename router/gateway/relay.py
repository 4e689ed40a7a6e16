"""The relay: walks down a ranking until a replica answers, and passes that answer on."""

from __future__ import annotations

from collections import deque
from time import monotonic

import aiohttp
from aiohttp import web
from multidict import CIMultiDict

from router.config import LimitOptions, ObserveOptions
from router.fleet.fleet import Fleet
from router.fleet.load import Lease
from router.fleet.replica import Replica
from router.gateway.answer import Answer
from router.gateway.headers import REQUEST_ID_HEADER, towards_replica
from router.gateway.prepare import Prepared
from router.gateway.timing import prefill_seconds
from router.gateway.upstream import Refused, Silent, Stopped, Upstream, UpstreamError, Vanished
from router.gateway.waiting import Turn
from router.observe.metrics import RouterMetrics
from router.observe.outcome import Outcome
from router.observe.tracing import Trace
from router.observe.witness import Decision, Witness
from router.placement.ask import Choice
from router.wire.errors import RAN_HEADER, ApiError, Source
from router.wire.report import ORCA_HEADER, LoadReport

# Back-pressure: the replica did not take the request, so another may.
_TURNED_AWAY = (429, 503)


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

    async def run(
        self,
        request: web.Request,
        prepared: Prepared,
        decision: Decision,
        outcome: Outcome,
        trace: Trace,
        turn: Turn | None = None,
    ) -> web.StreamResponse:
        """Answer the request; ApiError where no replica does. `turn` ends with the first byte."""
        headers = towards_replica(request.headers, request.remote, outcome.request_id)
        # By index, as a ranking is made no further than it is walked.
        to_try = deque(range(min(self._limits.attempts, len(decision.ranking))))
        ran_once = fresh = False
        while to_try:
            place = to_try.popleft()
            choice = decision.ranking[place]
            replica = self._fleet.by_name(choice.name)
            if replica is None:
                continue
            outcome.attempts += 1
            outcome.replica, outcome.reason = choice.name, choice.reason
            outcome.expected_tokens = choice.expected_tokens
            trace.sending(choice, outcome.attempts, headers)
            lease = replica.load.open(choice.prefill_seconds, monotonic(), outcome.prompt_tokens)
            try:
                url = replica.url + request.path_qs
                answer = await self._upstream.send(url, prepared.body, headers, fresh)
                try:
                    report = LoadReport.from_orca(answer.headers.get(ORCA_HEADER, ""))
                    replica.load.answered(lease, report, monotonic())
                    ran = RAN_HEADER in answer.headers
                    if answer.status in _TURNED_AWAY and to_try and not (ran and ran_once):
                        ran_once = ran_once or ran
                        self._note_failover(choice, str(answer.status), trace)
                        continue
                    return await self._pass_on(
                        request, prepared, decision, choice, replica, lease, answer, outcome, trace, turn
                    )
                finally:
                    # Wholly read, the connection is back in the pool already; else nobody wants the rest.
                    answer.close()
            except Refused as error:
                replica.health.unreachable()
                decision.not_reached(choice.name)
                self._note_failover(choice, "refused", trace)
                if not to_try:
                    raise _no_answer(error, outcome) from error
            except Vanished as error:
                if ran_once:
                    replica.health.unreachable()
                    raise _no_answer(error, outcome) from error
                ran_once = True
                self._note_failover(choice, "vanished", trace)
                if error.reused:
                    # Most likely only the idle connection was closed: the same replica, on a new one.
                    to_try.appendleft(place)
                    fresh = True
                    continue
                replica.health.unreachable()
                decision.not_reached(choice.name)
                if not to_try:
                    raise _no_answer(error, outcome) from error
            except Stopped as error:
                raise _no_answer(error, outcome) from error
            except UpstreamError as error:
                replica.health.answer_failed(monotonic())
                raise _no_answer(error, outcome) from error
            finally:
                replica.load.close(lease)
            fresh = False
        raise ApiError(503, "no replica is left to try", source=Source.ROUTER, retry_after_seconds=1)

    async def _pass_on(
        self,
        request: web.Request,
        prepared: Prepared,
        decision: Decision,
        choice: Choice,
        replica: Replica,
        lease: Lease,
        upstream: aiohttp.ClientResponse,
        outcome: Outcome,
        trace: Trace,
        turn: Turn | None,
    ) -> web.StreamResponse:
        now = monotonic()
        outcome.status = upstream.status
        outcome.streamed = upstream.content_type == "text/event-stream"
        outcome.block_tokens = replica.block_tokens
        if upstream.status < 400:
            self._witness.accepted(decision, choice, now)

        def on_bytes() -> None:
            replica.health.heard(monotonic())
            if outcome.first_byte_seconds is None:
                trace.began()
                replica.load.began(lease)
                if turn is not None:
                    turn.end()
                began_at = monotonic()
                outcome.first_byte_seconds = began_at - outcome.arrived_at
                self._witness.began(decision, began_at)

        headers = self._own_headers(prepared, choice, outcome)
        cutting = self._upstream.is_cutting
        answer = Answer(upstream, self._limits, headers, prepared.choices, on_bytes, cutting)
        try:
            response = await answer.pass_on(request, prepared.usage_asked)
        except ApiError:
            replica.health.answer_failed(monotonic())
            raise
        self._read(answer, outcome)
        if answer.broken_off:
            outcome.result = "broken_off"
            replica.health.answer_failed(monotonic())
        elif upstream.status >= 500 and upstream.status not in _TURNED_AWAY:
            outcome.result = "replica_error"
            replica.health.answer_failed(monotonic())
        elif upstream.status >= 400:
            outcome.result = "turned_away" if upstream.status in _TURNED_AWAY else "client_error"
        elif answer.reader.failed:
            outcome.result = "replica_error"
        else:
            replica.health.answer_succeeded()
            if prepared.choices == 1 and upstream.status == 200:
                self._teach(replica, answer, lease, outcome)
        return response

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

    def _own_headers(self, prepared: Prepared, choice: Choice, outcome: Outcome) -> CIMultiDict[str]:
        headers = CIMultiDict({REQUEST_ID_HEADER: outcome.request_id})
        if self._observe.response_headers:
            headers["x-kvring-replica"] = choice.name
            headers["x-kvring-expected-tokens"] = str(choice.expected_tokens)
            headers["x-kvring-policy"] = self._policy_name
            headers["x-kvring-tier"] = prepared.tier
        return headers

    def _note_failover(self, choice: Choice, reason: str, trace: Trace) -> None:
        trace.failed_over(reason)
        self._metrics.failovers.labels(choice.name, reason).inc()


def _no_answer(error: UpstreamError, outcome: Outcome) -> ApiError:
    tried = outcome.attempts > 1
    if isinstance(error, Stopped):
        return ApiError(503, "the router went down before an answer", source=Source.ROUTER, tried=True)
    if isinstance(error, Silent):
        return ApiError(504, "the replica did not answer in time", source=Source.REPLICA, tried=True)
    if isinstance(error, Refused):
        return ApiError(
            503, "no replica could be reached", source=Source.REPLICA, retry_after_seconds=1, tried=tried
        )
    return ApiError(502, "the replica broke off before it answered", source=Source.REPLICA, tried=tried)
