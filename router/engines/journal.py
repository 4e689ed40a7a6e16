"""A journal of one stream: which tokens the client has had, and how another replica goes on from there."""

from __future__ import annotations

from typing import Any

import orjson

from router.wire.sse import DONE, event_data

# More than the longest context has, in bytes of its token ids.
_MOST_BYTES = 16 * 1024 * 1024
_IDS = b',"token_ids":['
_ENDED = b'"finish_reason":"'
# Of a replica that is told to end while it still answers.
_GOES = b'"code":"shutting_down"'


class Journal:
    """Of a stream of our own replica. It is shown every event, whole and in order, before the client is.

    Where the replica dies, either `closing` has what is missing, or `resume` says what to send to another of
    the same engine and model, whose events then go through `take` like those before. Both may be asked again
    and again, as long as replicas die.
    """

    engine = "kvring"
    # What a request asks for its token ids with, ahead of its other members.
    asks = b'"return_token_ids":"answer",'

    def __init__(self, path: str) -> None:
        """`path` is the request's, /v1/chat/completions or /v1/completions."""
        self._path = path
        # The ids of the tokens that the client had, each followed by a comma.
        self._ids = bytearray()
        # The first event with a choice, which all others are like; empty before it.
        self._first = b""
        self._lost = False
        # Whether the replica said that it ends, and its answers with it.
        self.gone = False
        # Whether the client was told why the answer ended, and its usage.
        self._ended = False
        self._used = False

    def take(self, event: bytes) -> bytes:
        """Note one whole event; return what the client shall see of it, which may be nothing."""
        at = event.find(_IDS)
        end = event.find(b"]", at)
        if at < 0 or end < 0:
            self._take_without(event)
            return b"" if self.gone else event
        if end > at + len(_IDS):
            self._ids += event[at + len(_IDS) : end]
            self._ids += b","
            if len(self._ids) > _MOST_BYTES:
                self._lost = True
                self._ids.clear()
        event = event[:at] + event[end + 1 :]
        if _ENDED in event:
            self._ended = True
        if not self._first:
            self._first = event
        return event

    @property
    def tokens(self) -> int:
        """How many tokens the client has had."""
        return self._ids.count(b",")

    def closing(self) -> list[bytes] | None:
        """Return the events that are missing where that is known without a replica, else None.

        They are to go through `take`, as if they had come from who answered last.
        """
        return [DONE] if self._used else None

    def resume(
        self, engine: str, raw: bytes, inserted: bytes, context_tokens: int | None
    ) -> tuple[str, list[bytes]] | None:
        """Return path and body, in parts, for a replica that goes on; None where it cannot do so exactly.

        `raw` is the client's body and `inserted` what the router sets ahead of it, other than `asks`. The
        replica runs `engine`, and takes sequences of `context_tokens`.
        """
        if engine != self.engine or self._lost or not self._is_told():
            return None
        self.gone = False
        if not self._first:
            # Nothing was sent yet.
            return self._path, _inserted(raw, inserted, self.asks)
        return self._resume(raw, inserted, context_tokens)

    def _resume(
        self, raw: bytes, inserted: bytes, context_tokens: int | None
    ) -> tuple[str, list[bytes]] | None:
        head = self._head()
        told = orjson.dumps({"id": head.get("id"), "created": head.get("created"), "ended": self._ended})
        sent = b'"kvring_resume":' + told[:-1] + b',"token_ids":[' + self._ids[:-1] + b"]},"
        return f"/resume{self._path}", _inserted(raw, sent, inserted, self.asks)

    def _take_without(self, event: bytes) -> None:
        """Note an event that tells no token ids: the first of a chat and the last ones have none."""
        if _GOES in event and b'"choices"' not in event:
            self.gone = True
            return
        if b'"choices":[]' in event:
            self._used = True
        elif b'"choices":[' in event:
            # Text whose tokens are not known cannot be gone on from.
            self._lost = self._lost or not _opens(event)
            self._ended = self._ended or _ENDED in event
            self._first = self._first or event
        elif event_data(event) not in (None, b"[DONE]"):
            # Written otherwise than this engine does: what it says is not known.
            self._lost = True

    def _is_told(self) -> bool:
        """Say whether what was told as token ids are such."""
        return not self._ids.translate(None, b"0123456789,")

    def _head(self) -> dict[str, Any]:
        """Return the first event's JSON, empty where it has none."""
        try:
            chunk = orjson.loads(event_data(self._first) or b"")
        except orjson.JSONDecodeError:
            return {}
        return chunk if isinstance(chunk, dict) else {}


def _inserted(raw: bytes, *members: bytes) -> list[bytes]:
    opening = raw.index(b"{") + 1
    return [raw[:opening], *members, raw[opening:]]


def _opens(event: bytes) -> bool:
    """Say whether an event holds no more than the role of who speaks."""
    try:
        chunk = orjson.loads(event_data(event) or b"")
        (choice,) = chunk["choices"]
        return choice.get("finish_reason") is None and not any(
            value for name, value in choice["delta"].items() if name != "role"
        )
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError, ValueError):
        return False
