"""A whole fleet on this machine: replicas and one router, as child processes of this one."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import httpx

from loadgen.children import (
    Child,
    LaunchError,
    free_ports,
    require_free,
    start_child,
    stop_children,
    wait_until_ready,
)

_HOST = "127.0.0.1"
_ROOT = str(Path(__file__).resolve().parent.parent)
_PREPARE = """\
import sys
sys.path.append(sys.argv[1])
from replica.model.bundled import bundled_model_directory
print(bundled_model_directory())
"""
# Replicas share the machine's few cores; with a thread each they do not wait for one another.
_ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """What to start. `port` is the router's, 0 for a free one; the torch runner needs `model_directory`."""

    replicas: int = 3
    runner: Literal["torch", "echo"] = "torch"
    policy: str = "affinity"
    port: int = 0
    model: str = "smollm2-135m-instruct"
    model_directory: Path | None = None
    ready_seconds: float = 180.0
    stop_seconds: float = 5.0


class Fleet:
    """Runs a plan between `async with`; afterwards no process of it is left, only logs if it failed.

    Use it from the main thread: children die with the thread that started them.
    """

    def __init__(self, plan: FleetPlan) -> None:
        self._plan = plan
        self._children: dict[str, Child] = {}
        self._urls: dict[str, str] = {}
        self._router_port = plan.port
        self.logs = Path()

    @property
    def url(self) -> str:
        """The router's address."""
        return f"http://{_HOST}:{self._router_port}"

    @property
    def replica_urls(self) -> dict[str, str]:
        """The replicas' addresses by their names."""
        return dict(self._urls)

    async def __aenter__(self) -> Self:
        """Start all and wait until they are ready; LaunchError, with nothing left running, if one is not."""
        if self._plan.port:
            require_free(self._plan.port)
        self.logs = Path(tempfile.mkdtemp(prefix="kvring-"))
        try:
            await self._start()
        except BaseException as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop all; an end in order, Ctrl-C included, removes the logs."""
        await self.stop()
        if kind is None or issubclass(kind, asyncio.CancelledError):
            shutil.rmtree(self.logs, ignore_errors=True)

    async def restart_router(self, policy: str) -> None:
        """Stop the router, and start it at the same address with another policy."""
        router = self._children.pop("router")
        await stop_children([router], self._plan.stop_seconds)
        await self._start_router(policy)

    async def reset_caches(self) -> None:
        """Clear each replica's cache; LaunchError if one refuses."""
        async with httpx.AsyncClient(trust_env=False, timeout=30.0) as http:
            for name, url in self._urls.items():
                try:
                    response = await http.post(f"{url}/reset_prefix_cache")
                except httpx.HTTPError as error:
                    raise LaunchError(f"cannot clear the cache of {name}: {error!r}") from error
                if response.status_code != 200:
                    raise LaunchError(
                        f"{name} does not clear its cache: {response.status_code} {response.text}"
                    )

    def take_ended(self) -> list[tuple[str, LaunchError]]:
        """Return the names of children that have ended since the last call, each with its story."""
        ended = []
        for name, child in list(self._children.items()):
            if (how := child.ended()) is not None:
                del self._children[name]
                ended.append((name, child.failure(how)))
        return ended

    async def stop(self) -> None:
        """End all children."""
        children = list(self._children.values())
        self._children.clear()
        await stop_children(children, self._plan.stop_seconds)

    async def _start(self) -> None:
        plan = self._plan
        ports = free_ports(plan.replicas + 1)
        self._router_port = plan.port or ports.pop()
        for index, port in zip(range(plan.replicas), ports, strict=False):
            name = f"replica-{index}"
            self._urls[name] = f"http://{_HOST}:{port}"
            self._children[name] = start_child(name, self._replica(name, port), self.logs, _ONE_THREAD)
        for name, url in self._urls.items():
            await wait_until_ready(self._children[name], f"{url}/health", plan.ready_seconds)
        await self._start_router(plan.policy)

    async def _start_router(self, policy: str) -> None:
        child = start_child("router", self._router(policy), self.logs, _ONE_THREAD)
        self._children["router"] = child
        await wait_until_ready(child, f"{self.url}/readyz", self._plan.ready_seconds)

    def _replica(self, name: str, port: int) -> list[str]:
        plan = self._plan
        return [
            "replica",
            *("--name", name, "--port", str(port), "--runner", plan.runner, "--model", plan.model),
            *("--model-directory", str(plan.model_directory or "")),
            *_set("drain_seconds", "1", "linger_seconds", "0"),
        ]

    def _router(self, policy: str) -> list[str]:
        plan = self._plan
        arguments = ["router", "--listen", f"{_HOST}:{self._router_port}", "--policy", policy]
        for name, url in self._urls.items():
            arguments += ["--replica", f"{name}={url}"]
        if plan.model_directory is not None:
            directory = _toml_text(str(plan.model_directory))
            arguments += _set(f"models.{_toml_text(plan.model)}.tokenizer_directory", directory)
        # Open to this machine alone, so that `kvring explain` may ask.
        arguments += _set("observe.explain", "true")
        return arguments + _set("limits.drain_seconds", "1", "limits.drain_notice_seconds", "0")


async def bundled_model() -> Path:
    """Return the directory of the model that comes along, converted on first use; LaunchError without it."""
    # In a process of its own, since the conversion imports torch; -P, so that no module of the directory the
    # user happens to be in is taken for one of ours.
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-c",
        _PREPARE,
        _ROOT,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        last = errors.decode(errors="replace").strip().splitlines()[-1:]
        raise LaunchError(f"cannot prepare the model: {' '.join(last)}")
    return Path(output.decode().strip())


def _set(*pairs: str) -> list[str]:
    flags: list[str] = []
    for name, value in zip(pairs[::2], pairs[1::2], strict=True):
        flags += ["--set", f"{name}={value}"]
    return flags


def _toml_text(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
