"""Drives a scheduler step by step, without thread or socket, with a runner that remembers what it wrote."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from typing import Protocol

from replica.batch import Batch, Sampling, Work
from replica.block_pool import BlockPool, PoolObserver
from replica.load import PrefillMeter, WorkLoad
from replica.scheduler import Scheduler
from replica.sequence import Finish, Sequence
from replica.step import Output, Step
from router.chain.keys import Keys
from router.chain.namer import ChainNamer
from router.wire.report import PrefillCost

BLOCK = 4


class Computes(Protocol):
    """What of a runner a drive needs."""

    def run(self, batch: Batch) -> list[int | None]:
        """Compute a batch."""


class RememberingRunner:
    """Writes each token into its place, and samples from what it reads back: a wrong block would show.

    A stale, foreign or unwritten place is noticed at once, as the whole context is read at every step.
    """

    def __init__(self, block_count: int) -> None:
        self._places: list[list[int | None]] = [[None] * BLOCK for _ in range(block_count)]

    def run(self, batch: Batch) -> list[int | None]:
        """Compute a batch."""
        for work in batch.works:
            for position, token in enumerate(work.token_ids, work.start):
                self._places[work.block_ids[position // BLOCK]][position % BLOCK] = token
        return [self._sample(work) if work.sample else None for work in batch.works]

    def _sample(self, work: Work) -> int:
        length = work.start + len(work.token_ids)
        context = [self._places[work.block_ids[at // BLOCK]][at % BLOCK] for at in range(length)]
        return next_token([token for token in context if token is not None] if None not in context else [])


def next_token(context: Ordered[int]) -> int:
    """What the runner samples after a context."""
    value = 7
    for token in context:
        value = (value * 31 + token + 1) % 1_000_003
    return value


def answer_of(prompt: Ordered[int], count: int) -> list[int]:
    """What a run without any cache answers."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


class Drive:
    """A scheduler with its pool and runner."""

    def __init__(
        self,
        block_count: int = 32,
        max_running: int = 8,
        max_batch_tokens: int = 16,
        reuse: bool = True,
        block_tokens: int = BLOCK,
        runner: Computes | None = None,
        observer: PoolObserver | None = None,
    ) -> None:
        self.namer = ChainNamer("sha256", "test", block_tokens, None)
        self.pool = BlockPool(block_count, block_tokens, observer)
        self.load = WorkLoad(PrefillMeter(PrefillCost()))
        self.scheduler = Scheduler(
            self.pool,
            self.namer,
            self.load,
            block_tokens=block_tokens,
            max_running=max_running,
            max_batch_tokens=max_batch_tokens,
            reuse=reuse,
        )
        self.runner: Computes = runner or RememberingRunner(block_count)
        self.sequences: dict[int, Sequence] = {}
        self.answers: dict[int, list[int]] = {}
        self.finished: dict[int, Finish] = {}
        self._next_id = 0

    def add(
        self, prompt: Ordered[int], max_tokens: int = 3, salt: str | None = None, prewarm: bool = False
    ) -> int:
        """Queue a prompt; return its id."""
        keys = Keys("m", salt=salt)
        chain = self.namer.chain_of_tokens(prompt, keys)
        self._next_id += 1
        sequence = Sequence(
            list(prompt),
            len(prompt),
            list(chain.names),
            {0: keys.of_first_block()},
            Sampling(),
            max_tokens,
            salt=salt,
            prewarm=prewarm,
            id=self._next_id,
        )
        self.sequences[sequence.id] = sequence
        self.answers[sequence.id] = []
        if not prewarm:
            self.scheduler.foresee(sequence)
        self.scheduler.add(sequence)
        return sequence.id

    def step(self) -> Step | None:
        """Run one step; None when there was nothing to do."""
        step = self.scheduler.schedule()
        for output in self.scheduler.take_ended():
            self._note(output)
        if step is not None:
            self.load.begin_step(step.prefill, step.decodes)
            sampled = self.runner.run(step.batch)
            # What steps take here, on a busy machine, teaches nothing.
            self.load.end_step(learn=False)
            for output in self.scheduler.complete(step, sampled):
                self._note(output)
        return step

    def finish(self) -> None:
        """Step until all is done."""
        while self.step() is not None:
            pass

    def run(
        self, prompt: Ordered[int], max_tokens: int = 3, salt: str | None = None
    ) -> tuple[int, list[int]]:
        """Run one prompt to its end; return its cached tokens and its answer."""
        id = self.add(prompt, max_tokens, salt)
        self.finish()
        return self.sequences[id].cached_tokens or 0, self.answers[id]

    def _note(self, output: Output) -> None:
        if output.token is not None:
            self.answers[output.id].append(output.token)
        if output.finish:
            self.finished[output.id] = output.finish
