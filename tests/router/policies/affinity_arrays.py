"""affinity worked out by arrays over the whole fleet: slower, and as plain as its formulas; an oracle."""

from __future__ import annotations

from itertools import islice
from math import ceil

import numpy as np
import numpy.typing as npt

from router.placement.ask import Ask, Choice
from router.placement.memory import Memory, Recall
from router.placement.view import Column, FleetView
from router.policies.affinity import Config

Numbers = npt.NDArray[np.float64]


class ArrayAffinity:
    """Ranks all replicas at once, each time."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._memory = Memory(config.remember_names, config.remember_seconds, config.popularity_decay_seconds)

    def commit(self, ask: Ask, choice: Choice, now: float) -> None:
        """Remember the prompt and who serves it."""
        self._memory.record(ask, choice.name, choice.epoch, now)

    def rank(self, ask: Ask, fleet: FleetView, now: float) -> list[Choice]:
        """Rank every replica."""
        config, length = self._config, ask.prompt_tokens
        slack = config.copies_slack
        recall = self._memory.recall(
            ask, 1 / (slack * fleet.members), 1 / slack, config.least_conversations, now
        )
        key, common, home, second = self._copies(ask, fleet, recall)
        block = ask.chain.block_tokens if ask.chain else 1
        known = recall.depth * block
        expected, told, all_told = self._expected(
            ask, fleet, recall, np.minimum(common, known), home, second, now
        )

        table = fleet.table
        in_flight = table[Column.IN_FLIGHT].sum()
        others = (table[Column.RUNNING].sum() + table[Column.WAITING].sum()) / max(1.0, in_flight) - 1
        own = table[Column.OWN_WORK_SECONDS] * (1 + config.others_share * max(0.0, others))
        wait = np.maximum(0.0, table[Column.WORK_SECONDS] + own + table[Column.REPORTED_AT] - now)
        prefill = fleet.prefill_seconds(length, expected)
        score = fleet.prefill_seconds(length, np.maximum(expected, common)) + wait
        private_from = int(common.max())
        if home >= 0:
            share = config.home_bonus_with_digests if told[home] else config.home_bonus
            private = fleet.prefill_seconds(length, private_from) - fleet.prefill_seconds(length, length - 1)
            score[home] -= share * private[home]

        near = score.min() + config.near_tie_seconds
        anywhere = all_told and expected.max() <= private_from
        if anywhere:
            near += config.beginning_slack * prefill[score.argmin()]
        tied = score <= near
        rank = np.where(tied, table[Column.IN_FLIGHT] if anywhere else 0.0, score + 1e9)
        if home >= 0 and tied[home]:
            rank[home] -= 0.5
        breaks = np.array([fleet.tie_break(key, place) for place in range(len(fleet))], dtype=np.uint64)
        return [
            Choice(
                fleet.names[place],
                fleet.epochs[place],
                int(expected[place]),
                float(wait[place]),
                float(prefill[place]),
                "home" if place == home else "digest" if told[place] else "ring",
                float(score[place]),
            )
            for place in np.lexsort((breaks, rank)).tolist()
        ]

    def _copies(self, ask: Ask, fleet: FleetView, recall: Recall) -> tuple[bytes, Numbers, int, int]:
        """Return the key, what is common for each replica, the home and the second."""
        config, chain = self._config, ask.chain
        block, preamble = (chain.block_tokens, chain.preamble_tokens) if chain else (1, 0)
        small = preamble // block if preamble <= config.small_preamble_tokens else 0
        everywhere = max(recall.everywhere_depth, small) if chain else 0
        depth = max(recall.hot_depth, everywhere)
        copies = ceil(config.copies_slack * recall.hot_share * fleet.members)
        common = np.full(len(fleet), float(depth * block))
        places = [
            fleet.places[name] for name in fleet.ring.walk(ask.key_at(depth + 1)) if name in fleet.places
        ]
        if everywhere < depth and copies < fleet.members:
            walked = islice(fleet.ring.walk(ask.key_at(depth)), copies)
            holders = [fleet.places[name] for name in walked if name in fleet.places]
            if holders:
                common[:] = everywhere * block
                common[holders] = depth * block
                places = [place for place in places if place in holders]
        home, second = (*places, -1, -1)[:2]
        return ask.key_at(depth + 1), common, home, second

    def _expected(
        self, ask: Ask, fleet: FleetView, recall: Recall, guess: Numbers, home: int, second: int, now: float
    ) -> tuple[Numbers, npt.NDArray[np.bool_], bool]:
        """Return the tokens that each replica is expected to hold, whether its digest told, and all did."""
        config, chain = self._config, ask.chain
        block = chain.block_tokens if chain else 1
        known = recall.depth * block
        if second >= 0:
            guess[second] += int(config.second_share * (known - guess[second]))
        if home >= 0:
            guess[home] = known
        last = fleet.places.get(recall.replica, -1)
        renewed = last >= 0 and fleet.epochs[last] != recall.epoch
        if last >= 0:
            guess[last] = 0 if renewed else known
        held = np.full(len(fleet), -1)
        if config.use_digests:
            held = fleet.held_tokens(ask, now - config.digest_max_age_seconds)
        told = held >= 0
        expected = np.where(told, held, guess)
        if last >= 0 and not renewed and told[last] and expected[last] < known:
            made_at = fleet.caches.told_at([fleet.roster.slots[last]])[0]
            if recall.at > made_at - config.digest_lag_seconds:
                expected[last] = known
        if chain and ask.prompt_tokens <= len(chain.names) * block:
            expected = np.minimum(expected, max(0, ask.prompt_tokens - 1) // block * block)
        return expected, told, bool(told.all())
