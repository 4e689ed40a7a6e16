"""Events of scripted text completions."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from loadgen.client import COMPLETION_PATH
from tests.loadgen.scripted import DONE, Handler, event, usage
from tests.loadgen.scripted import serve as serve_path


def serve(handler: Handler) -> AbstractAsyncContextManager[str]:
    """Answer completions by `handler`; gives the address."""
    return serve_path(handler, COMPLETION_PATH)


def piece(text: str, finish: str | None = None) -> bytes:
    """Return the event of one completion chunk."""
    return event({"choices": [{"index": 0, "text": text, "finish_reason": finish}], "usage": None})


def whole(*words: str, prompt: int = 100, cached: int | None = 64) -> list[bytes]:
    """Return the events of a whole answer."""
    return [*map(piece, words), piece("", "length"), usage(prompt, cached, len(words)), DONE]
