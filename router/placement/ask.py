"""Ask, choice and ranking: the question, and one place in the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, overload

from xxhash import xxh3_128_digest

from router.chain.chain import Chain
from router.placement.marks import NO_MARKS, Marks

_LONG_BYTES = 4096


@dataclass(slots=True)
class Ask:
    """All a policy may know of a request. It changes once, for all that hold it: by `forget_text`.

    `chain` is None where the prompt could not be named (its length is then an estimate). `session` is the
    session key a client sent, if any. `spread` tells apart requests that have no other key. `marks` are
    the chain's boundaries, made with the ask, once for all that read them.
    """

    model: str
    prompt_tokens: int
    spread: bytes
    chain: Chain | None = None
    session: bytes | None = None
    marks: Marks = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.marks = Marks(self.chain) if self.chain is not None else NO_MARKS

    def forget_text(self) -> None:
        """Let go of what was named, where that is long: once an answer begins, its names are enough.

        What fills no block has no name, and is kept.
        """
        chain = self.chain
        if chain is not None and len(chain.data) > _LONG_BYTES and self.marks.blocks:
            self.chain = chain._replace(data=b"")

    def key_at(self, depth: int) -> bytes:
        """Return the key of the prompt's first `depth` blocks; of all its data where it fills no block."""
        if self.chain is None:
            return self.spread
        blocks = self.marks.blocks
        if not blocks:
            return xxh3_128_digest(self.chain.data)
        return self.chain.names[min(max(depth, 1), blocks) - 1]


class Choice(NamedTuple):
    """One place in a ranking: what was expected of a replica when it was ranked, and why it stands there.

    `score` is what the ranking went by, less is better, in the policy's own unit.
    """

    name: str
    epoch: str
    expected_tokens: int = 0
    wait_seconds: float = 0.0
    prefill_seconds: float = 0.0
    reason: str = ""
    score: float = 0.0


# Replicas, best first, each once.
Ranking = Sequence[Choice]
# Places in a fleet view, best first, and what makes the choice of one.
Order = tuple[Sequence[int], Callable[[int], Choice]]


class LazyRanking(Sequence[Choice]):
    """A ranking made as far as it is looked at: of hundreds of replicas one or two ever are."""

    __slots__ = ("_first", "_length", "_make", "_order", "_weigh")

    def __init__(self, first: Choice, length: int, weigh: Callable[[], Order]) -> None:
        """`first` of `length` is best; `weigh` tells of all in which order they go."""
        self._first = first
        self._length = length
        self._weigh = weigh
        self._order: Sequence[int] | None = None
        self._make: Callable[[int], Choice] | None = None

    @classmethod
    def of(cls, order: Sequence[int], make: Callable[[int], Choice]) -> LazyRanking:
        """Rank in an order that is known already; it has one place at least."""
        return cls(make(order[0]), len(order), lambda: (order, make))

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Choice: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Choice]: ...
    def __getitem__(self, index: int | slice) -> Choice | Sequence[Choice]:
        if index == 0:
            return self._first
        if self._order is None or self._make is None:
            self._order, self._make = self._weigh()
        if isinstance(index, slice):
            return tuple(map(self._make, self._order[index]))
        return self._make(self._order[index])
