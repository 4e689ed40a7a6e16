"""All processes of a run: mock replicas, the caller, and each router; none is left afterwards."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Self

import orjson

from loadgen.bench.relay.caller import Order, Reading
from loadgen.bench.relay.clocks import memory_bytes, process_tree
from loadgen.bench.relay.contenders import Contender, Place
from loadgen.children import Child, LaunchError, free_ports, start_child, stop_children

REPLICAS = 4
_CHILD = Path(__file__).with_name("child.py")
_READY_SECONDS = 30.0
_STOP_SECONDS = 5.0
_TRY_SECONDS = 0.1
# What an order may take beyond its seconds.
_ORDER_SECONDS = 60.0
# A line a request; only the end is ever shown.
_LARGEST_LOG_BYTES = 16 << 20


class Stage:
    """Runs between `async with`; use it from the main thread: children die with the thread that started them.

    Each router has its own process, port and folder, and stays up for the whole run.
    """

    def __init__(self, contenders: Sequence[Contender]) -> None:
        self._contenders = contenders
        self._children: dict[str, Child] = {}
        self._ports: dict[str, int] = {}
        self._replicas = free_ports(REPLICAS)
        self._folder = Path()
        self._caller: Process | None = None
        self.key = secrets.token_hex(16)

    @property
    def direct_port(self) -> int:
        """The port of one mock replica."""
        return self._replicas[0]

    @property
    def replicas_pid(self) -> int:
        """The process of the mock replicas."""
        return self._children["mock replicas"].process.pid

    def port(self, name: str) -> int:
        """The port of a router."""
        return self._ports[name]

    def pids(self, name: str) -> list[int]:
        """The processes of a router; LaunchError if it has ended."""
        child = self._children[name]
        if (how := child.ended()) is not None:
            raise child.failure(how)
        return process_tree(child.process.pid)

    def memory(self, name: str) -> tuple[int, int]:
        """The resident bytes of a router, now and at the peak."""
        return memory_bytes(self.pids(name))

    async def __aenter__(self) -> Self:
        """Start all and wait until each router answers; LaunchError, with nothing left, if one does not."""
        self._folder = Path(tempfile.mkdtemp(prefix="kvring-bench-"))
        try:
            await self._start()
        except BaseException as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop all; logs are kept only where a process failed."""
        try:
            if self._caller is not None and self._caller.returncode is None:
                self._caller.kill()
                await self._caller.wait()
        finally:
            await stop_children(list(self._children.values()), _STOP_SECONDS)
        if kind is None or not issubclass(kind, LaunchError):
            shutil.rmtree(self._folder, ignore_errors=True)

    async def call(self, order: Order) -> Reading:
        """Have the caller carry out an order; LaunchError if it dies, or a router does."""
        caller = self._caller
        if caller is None or caller.stdin is None or caller.stdout is None:
            raise RuntimeError("call is for what runs between async with")
        caller.stdin.write(orjson.dumps(asdict(order)) + b"\n")
        limit = order.warm_seconds + order.seconds + _ORDER_SECONDS
        try:
            line = await asyncio.wait_for(caller.stdout.readline(), limit)
        except TimeoutError:
            raise LaunchError(f"the caller did not end within {limit:.0f} s") from None
        for child in self._children.values():
            if (how := child.ended()) is not None:
                raise child.failure(how)
            if child.log.stat().st_size > _LARGEST_LOG_BYTES:
                os.truncate(child.log, 0)
        if not line:
            raise LaunchError("the caller has died; what it said stands above")
        return Reading(**orjson.loads(line))

    async def _start(self) -> None:
        count = len(self._contenders)
        ports = free_ports(2 * count)
        self._spawn("mock replicas", ["mock", *map(str, self._replicas)])
        self._caller = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", str(_CHILD), str(os.getpid()), "caller"),
            stdin=PIPE,
            stdout=PIPE,
            start_new_session=True,
        )
        await self._until_answers("mock replicas", self.direct_port)
        for contender, port, metrics_port in zip(self._contenders, ports[:count], ports[count:], strict=True):
            folder = self._folder / contender.name
            folder.mkdir()
            self._ports[contender.name] = port
            place = Place(port, metrics_port, self._replicas, self.key, folder)
            self._spawn(contender.name, ["run", *contender.command(place)])
        for contender in self._contenders:
            await self._until_answers(contender.name, self._ports[contender.name])

    def _spawn(self, name: str, arguments: Sequence[str]) -> None:
        self._children[name] = start_child(name, arguments, self._folder, {}, _CHILD)

    async def _until_answers(self, name: str, port: int) -> None:
        """Ask until a router gives a replica's answer; LaunchError if it ends first or takes too long."""
        child = self._children[name]
        deadline = asyncio.get_running_loop().time() + _READY_SECONDS
        while True:
            if (how := child.ended()) is not None:
                raise child.failure(f"{how} before it answered")
            reading = await self.call(Order(port, "json", 1024, 1, 0.0, 0.01, self.key, seed=0))
            if reading.requests and not reading.failures:
                return
            if asyncio.get_running_loop().time() > deadline:
                why = f"does not answer within {_READY_SECONDS:.0f} s: {reading.failure}"
                raise child.failure(why)
            await asyncio.sleep(_TRY_SECONDS)
