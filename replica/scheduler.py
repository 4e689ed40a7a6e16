"""The scheduler: which sequences compute which tokens in the next step, and in which blocks."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Ordered
from itertools import chain, count, islice
from typing import Protocol

from replica.batch import Batch, Work
from replica.block_pool import Block, BlockPool
from replica.load import NOTHING, PrefillShape, WorkLoad
from replica.sequence import Finish, Sequence, blocks_needed
from replica.step import Counts, Output, Step
from router.chain.chain import TOKEN_BYTES, pack_tokens


class BlockNamer(Protocol):
    """Names blocks that follow a prompt's chain; router.chain.namer.ChainNamer is one."""

    root: bytes

    def name_blocks(self, parent: bytes, data: bytes, keys: Mapping[int, bytes], first: int) -> list[bytes]:
        """Name the full blocks of packed tokens that follow `parent`, the first of them being `first`."""


class Scheduler:
    """Continuous batching: decodes first, then prefill in chunks, then new sequences in order of arrival.

    One prewarm at a time gets what is left of a step while nothing waits, and its blocks go to whoever
    wants them. Used by the engine's thread alone. With `reuse` off nothing is named, so nothing is found.
    """

    def __init__(
        self,
        pool: BlockPool,
        namer: BlockNamer,
        load: WorkLoad,
        *,
        block_tokens: int,
        max_running: int,
        max_batch_tokens: int,
        reuse: bool = True,
    ) -> None:
        self.pool = pool
        self.counts = Counts()
        self._namer = namer
        self._load = load
        self._block_tokens = block_tokens
        self._max_running = max_running
        self._max_batch_tokens = max_batch_tokens
        self._reuse = reuse
        self._arrivals = count()
        self._waiting: deque[Sequence] = deque()
        # In order of arrival, so that the last is the one to preempt.
        self._running: list[Sequence] = []
        # Only the first of them holds blocks, if any does.
        self._prewarms: deque[Sequence] = deque()
        self._ended: list[Output] = []
        self._by_id: dict[int, Sequence] = {}

    @property
    def running_count(self) -> int:
        """Sequences that hold blocks, prewarms aside."""
        return len(self._running)

    @property
    def waiting_count(self) -> int:
        """Sequences that wait for their first blocks, or for new ones after a preemption."""
        return len(self._waiting)

    def ids(self) -> tuple[int, ...]:
        """Return the ids of all live sequences."""
        return tuple(self._by_id)

    def foresee(self, sequence: Sequence) -> None:
        """Count the work of a sequence that is about to be queued. This may be called in any thread."""
        names = sequence.names if self._reuse else []
        length = len(sequence.tokens)
        self._load.enqueue(sequence.id, length, names, len(self._match(sequence)), self._block_tokens)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. Its caller has seen to it that the pool can hold it when it is alone."""
        self._by_id[sequence.id] = sequence
        if sequence.prewarm:
            self._prewarms.append(sequence)
            return
        sequence.arrival = next(self._arrivals)
        self._waiting.append(sequence)

    def drop(self, id: int) -> None:
        """End a sequence in whatever phase; an unknown id (ended already) is ignored."""
        sequence = self._by_id.pop(id, None)
        if sequence is None:
            return
        if sequence.prewarm:
            self._prewarms.remove(sequence)
            self._release(sequence)
            return
        if sequence.blocks:
            self._running.remove(sequence)
            self._release(sequence)
        else:
            self._waiting.remove(sequence)
        self._load.leave(id)

    def schedule(self) -> Step | None:
        """Choose the next step; None when nothing can run."""
        preemptions = self.counts.preemptions
        works: list[Work] = []
        chosen: list[Sequence] = []
        for sequence in [one for one in self._running if not one.prefilling]:
            # An earlier arrival in this very loop may have taken the blocks of this one.
            if sequence.blocks and self._grow(sequence):
                works.append(self._work(sequence, 1))
                chosen.append(sequence)
        decodes = len(works)
        budget = self._max_batch_tokens - decodes
        # Whoever starts just after blocks ran out would only be the next to be preempted.
        starters = () if self.counts.preemptions > preemptions else self._starters()
        shape = NOTHING
        for sequence in chain([one for one in self._running if one.prefilling], starters):
            if budget <= 0 or not (sequence.blocks or self._start(sequence)):
                break
            until = min(len(sequence.tokens), sequence.computed + budget)
            shape += PrefillShape.of(until, sequence.computed, until == len(sequence.tokens))
            budget -= until - sequence.computed
            works.append(self._work(sequence, until - sequence.computed))
            chosen.append(sequence)
        if budget > 0 and self._prewarms and not self._waiting and self._start_prewarm(self._prewarms[0]):
            sequence = self._prewarms[0]
            until = min(len(sequence.tokens), sequence.computed + budget)
            shape += PrefillShape.of(until, sequence.computed, end=False)
            works.append(self._work(sequence, until - sequence.computed))
            chosen.append(sequence)
        return Step(Batch(tuple(works)), tuple(chosen), shape, decodes) if works else None

    def complete(self, step: Step, sampled: Ordered[int | None]) -> list[Output]:
        """Take in what the runner computed; return what each sequence got, dropping those that ended."""
        outputs = []
        for sequence, work, token in zip(step.sequences, step.batch.works, sampled, strict=True):
            self._advance(sequence, len(work.token_ids))
            if token is None:
                if sequence.prewarm and not sequence.uncomputed:
                    outputs.append(Output(sequence.id, None, Finish.COMPUTED, sequence.cached_tokens or 0))
                    self.drop(sequence.id)
                continue
            if not sequence.begun:
                self.counts.prompt_tokens += sequence.prompt_tokens
            self.counts.generated_tokens += 1
            sequence.tokens.append(token)
            finish = sequence.finish_of(token)
            # Of an answer that was taken up, the cache may have held a part of the answer too.
            cached = min(sequence.cached_tokens or 0, sequence.prompt_tokens)
            evicted, seconds = sequence.evicted_tokens, sequence.prefill_seconds
            outputs.append(Output(sequence.id, token, finish, cached, evicted, seconds))
            if finish:
                self.drop(sequence.id)
        return outputs

    def take_ended(self) -> list[Output]:
        """Return the ends of prewarms that lost their blocks since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def _starters(self) -> Iterable[Sequence]:
        # A copy, as those that start leave the queue.
        return list(islice(self._waiting, max(0, self._max_running - len(self._running))))

    def _start(self, sequence: Sequence) -> bool:
        """Give the head of the queue its blocks; False, and no change, if there are too few."""
        # Matched now, never remembered: what was there at an earlier try may have been evicted.
        hits = self._match(sequence)
        if not self._hold(sequence, hits):
            # Its blocks may be wanted just for what it computes, so they are matched anew.
            if not self._end_prewarm():
                return False
            hits = self._match(sequence)
            if not self._hold(sequence, hits):
                return False
        self._waiting.popleft()
        insort(self._running, sequence, key=lambda one: one.arrival)
        if sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.computed
            if hits:
                self.pool.note_hit(hits[-1])
            if self._reuse:
                sequence.evicted_tokens = self._evicted_tokens(sequence, len(hits))
                self.counts.prefix_queries += len(sequence.tokens)
                self.counts.prefix_hits += sequence.computed
        self._load.left(sequence.id, len(sequence.tokens), sequence.computed)
        return True

    def _hold(self, sequence: Sequence, hits: list[Block]) -> bool:
        """Give a sequence the blocks it found and new ones for the rest; False, and no change, if too few."""
        self.pool.touch(hits)
        wanted = blocks_needed(len(sequence.tokens), self._block_tokens) - len(hits)
        # Those that run will each want a block soon: a start that takes the last ones ends in a preemption.
        enough = self.pool.free_count >= wanted + len(self._running)
        taken = self.pool.take(wanted) if enough else None
        if taken is None:
            self.pool.release(hits)
            return False
        sequence.blocks = hits + taken
        sequence.block_ids = [block.id for block in sequence.blocks]
        sequence.named = len(hits)
        sequence.computed = len(hits) * self._block_tokens
        return True

    def _start_prewarm(self, sequence: Sequence) -> bool:
        """Say whether a prewarm holds its blocks, which it takes if nobody will miss them."""
        if not sequence.blocks and self._hold(sequence, self._match(sequence)):
            sequence.cached_tokens = sequence.computed
        return bool(sequence.blocks)

    def _end_prewarm(self) -> bool:
        """Take the blocks of the prewarm that has some, which ends it; False if there is none."""
        if not (self._prewarms and self._prewarms[0].blocks):
            return False
        id = self._prewarms[0].id
        self.drop(id)
        self._ended.append(Output(id, None, Finish.ABORT))
        return True

    def _match(self, sequence: Sequence) -> list[Block]:
        # One token must be computed, or there would be nothing to sample from.
        return self.pool.match(sequence.names, (len(sequence.tokens) - 1) // self._block_tokens)

    def _evicted_tokens(self, sequence: Sequence, found: int) -> int:
        """Return how many prompt tokens behind the `found` blocks would have hit, had none been evicted."""
        limit = min(len(sequence.tokens) - 1, sequence.prompt_tokens) // self._block_tokens
        return (self.pool.ghost.depth(sequence.names, found, limit) - found) * self._block_tokens

    def _grow(self, sequence: Sequence) -> bool:
        """Make room for one more token, preempting the last arrivals; False if that was `sequence` itself."""
        if sequence.computed < len(sequence.blocks) * self._block_tokens:
            return True
        while (taken := self.pool.take(1)) is None:
            if self._end_prewarm():
                continue
            victim = self._running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        sequence.blocks += taken
        sequence.block_ids.append(taken[0].id)
        return True

    def _preempt(self, sequence: Sequence) -> None:
        """Take a sequence's blocks; it is computed again later, as far as it is not found in the pool."""
        self._running.remove(sequence)
        self._release(sequence)
        self._waiting.appendleft(sequence)
        sequence.prefilling = True
        sequence.preemptions += 1
        self.counts.preemptions += 1
        self._load.left(sequence.id, len(sequence.tokens), len(self._match(sequence)) * self._block_tokens)

    def _release(self, sequence: Sequence) -> None:
        self.pool.release(sequence.blocks)
        sequence.blocks, sequence.block_ids = [], []
        sequence.computed = sequence.named = 0

    def _work(self, sequence: Sequence, tokens: int) -> Work:
        start, until = sequence.computed, sequence.computed + tokens
        return Work(
            request_id=sequence.id,
            token_ids=sequence.tokens[start:until],
            start=start,
            block_ids=sequence.block_ids,
            sample=until == len(sequence.tokens) and not sequence.prewarm,
            sampling=sequence.sampling,
            sampled=sequence.sampled,
        )

    def _advance(self, sequence: Sequence, tokens: int) -> None:
        """Note `tokens` more as computed, and name the blocks that they fill."""
        sequence.computed += tokens
        if sequence.prefilling:
            self._count_prefill(sequence, tokens)
        if not self._reuse:
            return
        first, last, size = sequence.named, sequence.computed // self._block_tokens, self._block_tokens
        if first == last:
            return
        names, step = sequence.names, size * TOKEN_BYTES
        data = pack_tokens(sequence.tokens[first * size : last * size])
        if len(names) < last:
            unnamed = data[(len(names) - first) * step :]
            parent = names[-1] if names else self._namer.root
            names += self._namer.name_blocks(parent, unnamed, sequence.keys, len(names))
        for index in range(first, last):
            at = (index - first) * step
            self.pool.give_name(
                sequence.blocks[index],
                names[index],
                index + 1,
                names[index - 1] if index else None,
                data[at : at + step],
                None if index else sequence.salt,
            )
        sequence.named = last

    def _count_prefill(self, sequence: Sequence, tokens: int) -> None:
        if sequence.prewarm:
            self.counts.prewarm_tokens += tokens
            return
        if sequence.preemptions:
            self.counts.recomputed_tokens += tokens
        else:
            self.counts.prefill_tokens += tokens
        sequence.prefilling = sequence.uncomputed > 0
        if sequence.prefilling:
            self._load.left(sequence.id, len(sequence.tokens), sequence.computed)
        else:
            self._load.leave(sequence.id)
