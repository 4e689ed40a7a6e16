"""A simulated replica: prefills one after another, over the replica's real block pool."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from loadgen.simulate.scenario import Scenario
from loadgen.simulate.workload import IDENTITY, Request
from replica.block_pool import Block, BlockPool
from router.chain.digest import Digest
from router.observe.attribution import Evidence


@dataclass(slots=True, eq=False)
class Job:
    """A request on a replica. `work_seconds` is what the replica believes its prefill takes."""

    request: Request
    router: int
    expected_tokens: int
    work_seconds: float = 0.0
    hit_tokens: int = 0
    evidence: Evidence | None = None


class Replica:
    """A queue, a cache and decodes that slow prefills down. Times are virtual seconds."""

    def __init__(
        self, slot: int, name: str, block_tokens: int, scenario: Scenario, believed: float, now: float
    ) -> None:
        self.slot = slot
        self.name = name
        self.epoch = f"{name}:0"
        self.pool = BlockPool(scenario.cache_blocks, block_tokens)
        self.queue: deque[Job] = deque()
        self.serving: Job | None = None
        self.decodes = 0
        self.gone = False
        self.joined_at = now
        self.left_at = inf
        self._block_tokens = block_tokens
        self._scenario = scenario
        self._believed = believed
        self._busy_until = 0.0
        self._queued_seconds = 0.0
        # Of all prompts here that have no answer yet.
        self._prompt_tokens = 0
        # Names that queued prompts will bring: those behind them in the queue will find them.
        self._coming: Counter[bytes] = Counter()
        self._digest_of: int | None = None

    def held_blocks(self, names: Sequence[bytes]) -> int:
        """Return how many leading blocks are in the cache."""
        return len(self.pool.match(names))

    def future_blocks(self, names: Sequence[bytes]) -> int:
        """The same, counting what queued prompts will have brought."""
        depth = len(self.pool.match(names))
        while depth < len(names) and names[depth] in self._coming:
            depth += 1
        return depth

    def work_seconds(self, now: float) -> float:
        """Return the seconds of queued uncached prefill, as the replica believes."""
        return self.busy_seconds(now) * self._believed + self._queued_seconds

    def busy_seconds(self, now: float) -> float:
        """Return how long the prefill that runs now goes on."""
        return max(0.0, self._busy_until - now)

    def seconds_within(self, start: float, end: float) -> float:
        """Return how long it was there between two times."""
        return max(0.0, min(end, self.left_at) - max(start, self.joined_at))

    def kv_usage(self) -> float:
        """Return the share of blocks that running and waiting prompts take."""
        return min(1.0, self._prompt_tokens / (self.pool.block_count * self._block_tokens))

    def fits(self, request: Request) -> bool:
        """Say whether the prompt fits the cache at all."""
        return len(request.names) <= self.pool.block_count

    def accept(self, job: Job) -> None:
        """Put a request into the queue."""
        request = job.request
        hit = min(self.future_blocks(request.names), request.hittable) * self._block_tokens
        job.work_seconds = self._scenario.cost.seconds(request.prompt_tokens, hit) * self._believed
        self._queued_seconds += job.work_seconds
        self._coming.update(request.names)
        self._prompt_tokens += request.prompt_tokens
        self.queue.append(job)

    def begin(self, now: float) -> float:
        """Start the next prefill: the hit is what is cached now. Return when it ends."""
        job = self.queue.popleft()
        request = job.request
        self._queued_seconds = self._queued_seconds - job.work_seconds if self.queue else 0.0
        self._drop_coming(request.names)
        found = self.pool.match(request.names)
        job.hit_tokens = min(len(found), request.hittable) * self._block_tokens
        self._keep(request.names, found)
        load = min(1.0, self.decodes / self._scenario.decode_slots)
        seconds = self._scenario.cost.seconds(request.prompt_tokens, job.hit_tokens)
        self._busy_until = now + seconds * (1 + self._scenario.decode_slowdown * load)
        self.serving = job
        return self._busy_until

    def end(self) -> None:
        """The prefill is over: its request decodes from now on."""
        if self.serving is not None:
            self._prompt_tokens -= self.serving.request.prompt_tokens
        self.serving = None
        self.decodes += 1

    def digest(self) -> Digest | None:
        """Return the digest of what is cached now; None where it is as the last one."""
        if self._digest_of == self.pool.version:
            return None
        self._digest_of = self.pool.version
        return Digest.of(self.pool.boundary_names(), IDENTITY, self.epoch)

    def leave(self, now: float) -> list[Job]:
        """Go, and hand back what was not finished; the cache stays as it is."""
        self.gone, self.left_at = True, now
        left = [self.serving] if self.serving else []
        left += self.queue
        self.queue.clear()
        self.serving = None
        return left

    def _keep(self, names: Sequence[bytes], blocks: list[Block]) -> None:
        """Put a prompt's blocks into the pool, as most recently used; `blocks` are those that are there."""
        self.pool.touch(blocks)
        fresh = self.pool.take(len(names) - len(blocks)) or []
        for depth, block in enumerate(fresh, len(blocks) + 1):
            self.pool.give_name(block, names[depth - 1], depth)
        self.pool.release(blocks + fresh)

    def _drop_coming(self, names: Sequence[bytes]) -> None:
        coming = self._coming
        for name in names:
            if coming[name] > 1:
                coming[name] -= 1
            else:
                del coming[name]
