"""A course: what caches and work would come to, had all requests seen here gone one policy's way."""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
from typing import Any

from xxhash import xxh3_64_intdigest

from router.placement.ask import Ask, Choice

# Names that all modelled caches hold together, where a newer one may overwrite an older one; 256 KB.
_NAMES = 1 << 15
_MOST_CONVERSATIONS = 4096
_MOST_REPLICAS = 1024


class Course:
    """Takes requests with the replica chosen for each. An estimate: of prompts only, not of answers."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.hit_tokens = 0
        self.turns = 0
        self.moved = 0
        self._names = array("Q", [0]) * _NAMES
        self._work: Counter[str] = Counter()
        self._conversations: OrderedDict[int, str] = OrderedDict()

    def take(self, ask: Ask, choice: Choice, conversation: int) -> tuple[int, bool]:
        """Take a request; return the tokens it would have hit, and whether its conversation moved."""
        hit = self._hit_tokens(ask, choice)
        self.prompt_tokens += ask.prompt_tokens
        self.hit_tokens += hit
        self._work[choice.name] += ask.prompt_tokens - hit
        if len(self._work) > _MOST_REPLICAS:
            # Most of them must have left long ago.
            self._work = Counter(dict(self._work.most_common(_MOST_REPLICAS // 2)))
        before = self._conversations.pop(conversation, None)
        self._conversations[conversation] = choice.name
        if len(self._conversations) > _MOST_CONVERSATIONS:
            self._conversations.popitem(last=False)
        moved = before is not None and before != choice.name
        self.turns += before is not None
        self.moved += moved
        return hit, moved

    @property
    def busiest_share(self) -> float:
        """The busiest replica's share of the tokens that would have been computed; 0 before any were."""
        total = self._work.total()
        return max(self._work.values()) / total if total else 0.0

    def report(self) -> dict[str, Any]:
        """Return the figures; shares are None before there is anything to divide by."""
        return {
            "hit_ratio": self.hit_tokens / self.prompt_tokens if self.prompt_tokens else None,
            "busiest_share": self.busiest_share if self._work else None,
            "moved_share": self.moved / self.turns if self.turns else None,
        }

    def _hit_tokens(self, ask: Ask, choice: Choice) -> int:
        chain = ask.chain
        if chain is None or not chain.names:
            return 0
        # A name on one replica, in one life of its cache.
        life = xxh3_64_intdigest(f"{choice.name}\0{choice.epoch}".encode())
        depth = 0
        for reached, name in zip(ask.marks.depths, ask.marks.first, strict=True):
            mark = name ^ life
            place = mark & (_NAMES - 1)
            if self._names[place] == mark:
                depth = reached
            self._names[place] = mark
        return min(depth, (ask.prompt_tokens - 1) // chain.block_tokens) * chain.block_tokens
