"""The service: the event loop's side of the engine, which lets requests in and hands them their tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import count
from time import monotonic
from types import TracebackType
from typing import Self

from replica.engine import Engine
from replica.load import WorkLoad
from replica.sequence import Finish, Sequence
from replica.step import Output
from router.wire.errors import ApiError, Source
from router.wire.report import LoadReport, PrefillCost

_RETRY_AFTER_SECONDS = 1
# Prewarms go one after the other; several routers may each send one.
_MOST_PREWARMS = 8


class Lease:
    """One request counted on this replica, with all its sequences. Leaving its context ends them."""

    def __init__(self, service: Service, size: int) -> None:
        self.opened = monotonic()
        self._service = service
        self._size = size
        self._indices: dict[int, int] = {}
        self._begun: set[int] = set()
        self._outputs: list[tuple[int, Output]] = []
        self._ready = asyncio.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._service._end(self._size, list(self._indices))

    def submit(self, sequences: Iterable[Sequence]) -> None:
        """Queue the request's sequences."""
        for index, sequence in enumerate(sequences):
            sequence.id = next(self._service._ids)
            self._indices[sequence.id] = index
            self._service._submit(self, sequence)

    async def outputs(self) -> list[tuple[int, Output]]:
        """Wait for outputs; return all that have come, each with the index of its sequence."""
        await self._ready.wait()
        self._ready.clear()
        outputs, self._outputs = self._outputs, []
        return outputs

    def stop(self, index: int) -> None:
        """End one of the sequences before its time."""
        for id in [id for id, known in self._indices.items() if known == index]:
            del self._indices[id]
            self._service._abort(id)

    def _push(self, output: Output) -> bool:
        """Take an output; say whether it holds its sequence's first token."""
        index = self._indices[output.id]
        first = output.token is not None and index not in self._begun
        if first:
            self._begun.add(index)
        if output.finish:
            del self._indices[output.id]
        self._outputs.append((index, output))
        self._ready.set()
        return first

    def _fail(self) -> None:
        # They stay in the service's books, and running, until the request's context is left.
        for index in self._indices.values():
            self._outputs.append((index, Output(0, None, Finish.ABORT)))
        self._ready.set()


class Service:
    """Lives on one event loop, which it is made on."""

    def __init__(
        self,
        engine: Engine,
        load: WorkLoad,
        *,
        max_requests: int,
        observe: Callable[[Output, float, bool], None],
    ) -> None:
        """`observe` gets every output, the seconds since its request was let in, and whether it is the
        first."""
        self.engine = engine
        self._loop = asyncio.get_running_loop()
        self._work = load
        self._max_requests = max_requests
        self._observe = observe
        self._ids = count(1)
        self._reports = count(1)
        self._leased = 0
        self._leases: dict[int, Lease] = {}
        self._prewarms: dict[int, asyncio.Future[Output]] = {}
        self._empty = asyncio.Event()
        self._empty.set()
        engine.start(self._deliver)

    @property
    def leased(self) -> int:
        """Sequences let in and not yet ended."""
        return self._leased

    @property
    def prefill(self) -> PrefillCost:
        """S as known now."""
        return self._work.cost

    def lease(self, size: int) -> Lease:
        """Let in a request of `size` sequences; ApiError 503 if it should go elsewhere."""
        if self.engine.snapshot.broken:
            raise self._refusal("the engine has failed", "engine_failed")
        # A request that is larger than the limit by itself could never be let in.
        if self._leased and self._leased + size > self._max_requests:
            raise self._refusal(f"{self._leased} requests are running or waiting here", "queue_full")
        self._leased += size
        self._empty.clear()
        return Lease(self, size)

    def report(self) -> LoadReport:
        """Return the load as of now, also in the middle of a step."""
        snapshot = self.engine.snapshot
        used = snapshot.block_count - snapshot.free_blocks
        return LoadReport(
            work_seconds=self._work.seconds(),
            running=snapshot.running,
            waiting=self._waiting,
            kv_usage=used / snapshot.block_count,
            sequence=next(self._reports),
        )

    def admit_prewarm(self) -> None:
        """ApiError 503 if a prewarm would be in the way, or could not be computed."""
        if self.engine.snapshot.broken:
            raise self._refusal("the engine has failed", "engine_failed")
        if self._waiting or len(self._prewarms) >= _MOST_PREWARMS:
            raise self._refusal("requests wait here", "busy")

    async def prewarm(self, sequence: Sequence) -> Output:
        """Compute a prewarm; return how it ended. No request is counted, and nothing is drained for it."""
        self.admit_prewarm()
        sequence.id = next(self._ids)
        ended: asyncio.Future[Output] = self._loop.create_future()
        self._prewarms[sequence.id] = ended
        try:
            self.engine.add(sequence)
            return await ended
        finally:
            del self._prewarms[sequence.id]
            # Ended already, unless whoever asked is gone.
            self.engine.abort(sequence.id)

    def end_prewarms(self) -> None:
        """End all prewarms, unfinished."""
        for id, ended in self._prewarms.items():
            _settle(ended, Output(id, None, Finish.ABORT))

    async def drained(self) -> None:
        """Wait until no request is left."""
        await self._empty.wait()

    def fail_all(self) -> None:
        """Tell every request that it ends here, unfinished."""
        for lease in set(self._leases.values()):
            lease._fail()

    async def stop(self, timeout_seconds: float) -> bool:
        """Stop the engine; False if its step takes longer than the timeout."""
        return await self._loop.run_in_executor(None, self.engine.stop, timeout_seconds)

    @property
    def _waiting(self) -> int:
        # What has been let in and is not seen running waits, be it still on its way to the engine.
        snapshot = self.engine.snapshot
        return max(snapshot.waiting, len(self._leases) - snapshot.running, 0)

    def _refusal(self, message: str, code: str) -> ApiError:
        return ApiError(
            503, message, source=Source.REPLICA, code=code, retry_after_seconds=_RETRY_AFTER_SECONDS
        )

    def _submit(self, lease: Lease, sequence: Sequence) -> None:
        self._leases[sequence.id] = lease
        self.engine.add(sequence)

    def _end(self, size: int, unfinished: Iterable[int]) -> None:
        for id in unfinished:
            self._abort(id)
        self._leased -= size
        if self._leased == 0:
            self._empty.set()

    def _abort(self, id: int) -> None:
        self._leases.pop(id, None)
        self.engine.abort(id)

    def _deliver(self, outputs: list[Output]) -> None:
        # A loop that is closed has nobody left who waits.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._hand_out, outputs)

    def _hand_out(self, outputs: list[Output]) -> None:
        for output in outputs:
            lease = self._leases.get(output.id)
            if lease is None:
                if (ended := self._prewarms.get(output.id)) is not None:
                    _settle(ended, output)
                continue
            if output.finish:
                del self._leases[output.id]
            first = lease._push(output)
            self._observe(output, monotonic() - lease.opened, first)


def _settle(ended: asyncio.Future[Output], output: Output) -> None:
    if not ended.done():
        ended.set_result(output)
