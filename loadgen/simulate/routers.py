"""The routers of a simulation: each its own policy object and its own, stale picture of the fleet."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loadgen.simulate.caches import AskedDigests, ExactCaches
from loadgen.simulate.replica import Job, Replica
from loadgen.simulate.scenario import Scenario
from loadgen.simulate.workload import Request
from router.placement.ask import Choice
from router.placement.policy import Policy, Sees
from router.placement.ring import Ring
from router.placement.roster import Roster
from router.placement.view import Column, FleetView, Floats
from router.policies import load_policy


class Routers:
    """All routers. Their tables are one array, routers by columns by replicas, as reports reach all alike."""

    def __init__(self, scenario: Scenario, replicas: list[Replica], slot_count: int) -> None:
        self._scenario = scenario
        self._replicas = replicas
        self.policies: list[Policy] = [
            load_policy(scenario.policy, scenario.policy_options) for _ in range(scenario.routers)
        ]
        self.sees: Sees = getattr(self.policies[0], "sees", "reports")
        self.digests = AskedDigests()
        self.digests.reserve(slot_count)
        self._tables: Floats = np.zeros((scenario.routers, len(Column), slot_count))
        cost = scenario.cost
        coefficients = (cost.base_seconds, cost.per_token_seconds, cost.per_token_context_seconds)
        self._tables[:, Column.BASE_SECONDS :, :] = np.array(coefficients)[:, None] * scenario.believed_scale
        self._tables[:, Column.BASE_SECONDS :, 0] *= scenario.believed_scale_of_first
        self._caches = (
            self.digests if self.sees == "reports" else ExactCaches(replicas, queued=self.sees == "truth")
        )
        self._exact_load = self.sees == "truth" or scenario.load_staleness_seconds == 0
        self._roster = Roster((), (), (), Ring(()), 0)
        self._all_serve = False

    def meet(self, replicas: Sequence[Replica]) -> None:
        """Route to these from now on."""
        self._roster = Roster(
            tuple(replica.name for replica in replicas),
            tuple(replica.epoch for replica in replicas),
            tuple(replica.slot for replica in replicas),
            Ring([replica.name for replica in replicas]),
            len(replicas),
        )
        self._all_serve = len(replicas) == self._tables.shape[2]

    def decide(self, router: int, request: Request, now: float) -> tuple[Replica, Choice]:
        """Rank, take the best, and note what was sent there."""
        if self._exact_load:
            self.report(self._replicas, now)
        table = self._tables[router]
        seen = table if self._all_serve else table[:, list(self._roster.slots)]
        view = FleetView.of_table(self._roster, seen, self._caches)
        policy = self.policies[router]
        self.digests.asked = False
        choice = policy.rank(request.ask, view, now)[0]
        policy.commit(request.ask, choice, now)
        slot = self._roster.slots[self._roster.places[choice.name]]
        table[Column.OWN_WORK_SECONDS, slot] += choice.prefill_seconds
        table[Column.IN_FLIGHT, slot] += 1
        table[Column.IN_FLIGHT_TOKENS, slot] += request.prompt_tokens
        table[Column.DISPATCHED, slot] += 1
        return self._replicas[slot], choice

    def told_tokens(self, request: Request, chosen: Replica, choice: Choice) -> int:
        """Return how much the digest of who was chosen told the last decision that it held.

        Nothing where the decision asked for no digest, and no more than it then expected: as in a live
        router, a digest misled only who believed it.
        """
        chain = request.ask.chain
        if not self.digests.asked or chain is None:
            return 0
        told = self.digests.held_blocks(chain, request.ask.marks, (chosen.slot,))
        return min(max(0, told[0]) * chain.block_tokens, choice.expected_tokens) if told else 0

    def finished(self, job: Job, replica: Replica) -> None:
        """Take a request out of its router's count."""
        table = self._tables[job.router]
        table[Column.IN_FLIGHT, replica.slot] -= 1
        table[Column.IN_FLIGHT_TOKENS, replica.slot] -= job.request.prompt_tokens

    def report(self, replicas: Sequence[Replica], now: float) -> None:
        """Let all routers know these replicas' load; what they sent before is in it."""
        present = [replica for replica in replicas if not replica.gone]
        if not present:
            return
        slots = [replica.slot for replica in present]
        tables = self._tables
        tables[:, Column.WORK_SECONDS, slots] = [replica.work_seconds(now) for replica in present]
        tables[:, Column.REPORTED_AT, slots] = now
        tables[:, Column.OWN_WORK_SECONDS, slots] = 0.0
        tables[:, Column.RUNNING, slots] = [r.decodes + (r.serving is not None) for r in present]
        tables[:, Column.WAITING, slots] = [len(replica.queue) for replica in present]
        tables[:, Column.KV_USAGE, slots] = [replica.kv_usage() for replica in present]
