"""A replica that sends just the bytes it is told to, cut anywhere, and keeps what it got."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from router.chain.namer import ChainNamer
from router.wire.report import LONG_SECONDS, LoadReport, PrefillCost, ReplicaState
from tests.router.oracle.wire import Cut, Message, read_message, reset, write_pieces

CASE = "x-case"


@dataclass(frozen=True, slots=True)
class Script:
    """How a request is answered: these bytes, cut by `seed`, up to `stop`; then, where told so, the end."""

    sent: bytes
    seed: int | None = None
    stop: int | None = None
    # "keep" goes on with the connection, "close" ends it by FIN, "reset" by RST.
    end: str = "keep"

    @property
    def whole(self) -> bool:
        return self.stop is None


_COMPLETION = b'{"id":"x","object":"chat.completion","choices":[],"usage":{"prompt_tokens":9}}'
FINE = Script(
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
    % (len(_COMPLETION), _COMPLETION)
)


ByHand = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class RawReplica:
    """Answers a request by the script that its header x-case names, else FINE; keeps what it got."""

    def __init__(self) -> None:
        self.scripts: dict[str, Script] = {}
        self.got: list[Message] = []
        self.url = ""
        # Serves a connection, once a request's head has been read from it, in place of scripts.
        self.by_hand: ByHand | None = None
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def connections(self) -> int:
        """Connections that are open, but for those that asked for its state."""
        return len(self._writers)

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1024 * 1024)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def hang_up(self) -> None:
        """End all connections."""
        for writer in list(self._writers):
            writer.close()

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await asyncio.sleep(0.01)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            if self.by_hand is not None:
                head = await reader.readuntil(b"\r\n\r\n")
                if not head.startswith(b"GET"):
                    await self.by_hand(reader, writer)
                    return
                self._writers.discard(writer)
                writer.write(_probed(head.split(b" ")[1].decode()))
            while (message := await read_message(reader)) is not None:
                if message.first[0] == "GET":
                    self._writers.discard(writer)
                    writer.write(_probed(message.first[1]))
                    continue
                self.got.append(message)
                if not await self._answer(message, writer):
                    break
        except (ConnectionError, Cut, asyncio.IncompleteReadError):
            # The router left.
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, message: Message, writer: asyncio.StreamWriter) -> bool:
        """Answer; say whether the connection goes on."""
        script = self.scripts.get("".join(message.of(CASE)), FINE)
        await write_pieces(writer, script.sent[: script.stop], script.seed)
        if script.end == "reset":
            reset(writer)
        return script.end == "keep"


def _probed(target: str) -> bytes:
    """Answer as a replica of ours does who is ready."""
    status, told = "404 Not Found", {}
    if target == "/state":
        identity = ChainNamer("sha256", "kvring", 16, None).identity
        load = LoadReport(0.0, 0, 0, 0.0, 1)
        state = ReplicaState(
            name="r0",
            uid="r0-1",
            cache_epoch=0,
            models=("m",),
            chain=identity,
            load=load,
            prefill=PrefillCost(),
            context_tokens=8192,
            block_count=100,
            free_blocks=100,
            draining=False,
            serving_seconds=LONG_SECONDS,
        )
        status, told = "200 OK", state.to_json()
    body = json.dumps(told).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body
