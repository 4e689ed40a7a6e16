"""What the prompt of a conversation holds, as blocks: it grows at its end, and is cut for others to share."""

from __future__ import annotations

from itertools import count

from loadgen.traces.trace import TraceRequest


class BlockIds:
    """Hands out ids that no block had before."""

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self._ids = count()

    def fresh(self, blocks: int) -> tuple[int, ...]:
        """Return so many new ids."""
        return tuple(next(self._ids) for _ in range(blocks))


class Context:
    """A prompt of `tokens` tokens. Unchangeable: to grow and to cut give another one, which shares blocks."""

    def __init__(self, ids: BlockIds, tokens: int = 0, full: tuple[int, ...] = ()) -> None:
        self._ids = ids
        self.tokens = tokens
        self._full = full

    def grown(self, tokens: int) -> Context:
        """Return this prompt with `tokens` tokens of its own behind it."""
        total = self.tokens + tokens
        new = total // self._ids.block_tokens - len(self._full)
        return Context(self._ids, total, self._full + self._ids.fresh(new))

    def cut(self, tokens: int) -> Context:
        """Return the first `tokens` tokens of this prompt."""
        tokens = min(tokens, self.tokens)
        return Context(self._ids, tokens, self._full[: tokens // self._ids.block_tokens])

    def request(self, arrival_seconds: float, output_tokens: int, session: str) -> TraceRequest:
        """Return a request with this prompt; a partial block at its end gets an id of its own."""
        partial = self._ids.fresh(1 if self.tokens % self._ids.block_tokens else 0)
        return TraceRequest(arrival_seconds, self.tokens, output_tokens, self._full + partial, session)
