"""The namer: from a canonical prompt to its chain, doing for a conversation's next turn only what is new."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from sys import getsizeof
from threading import Lock
from typing import Protocol

from cachetools import LRUCache

from router.chain.algorithms import ALGORITHMS
from router.chain.chain import TOKEN_BYTES, Chain, ChainIdentity, fingerprint, pack_tokens
from router.chain.keys import Keys
from router.chain.names import Names
from router.chain.prompt import CanonicalPrompt, canonical_bytes, canonical_pieces
from router.chain.segments import Piece, Segment, SegmentTree
from router.chain.tokenizer import ModelTokenizer

# What a token is taken for, in bytes of text, where there is no tokenizer (English measures 4.4).
BYTES_PER_TOKEN = 4

# What the pieces of a prompt are. Token ids that spell a text must not be taken for its tokens.
_DATA = b"data"
_TEXT = b"text"
_SPECIAL_TEXT = b"special"

# What work takes, about: by these it is told whether it may be done on an event loop.
_SECONDS_A_CHARACTER_ENCODED = 0.5e-6
_SECONDS_A_BLOCK_NAMED = 0.6e-6
# What an encoded text takes in memory beside itself.
_ENTRY_BYTES = 300


class Naming(Protocol):
    """A prompt being named: what was known of it is found, `chain` does the rest.

    `seconds` is about what that will take. One thread at a time may use it.
    """

    seconds: float

    def chain(self) -> Chain:
        """Return the chain."""


class ChainNamer:
    """Names the prompts of one model. Thread-safe.

    With a tokenizer the chain is over its tokens, without over canonical bytes. Both are cut into segments
    at message borders, and what is known of a segment is remembered by all that went before it, so that a
    turn costs its new message only (`cache_bytes` bounds that memory). Bytes are hashed anew each time where
    the algorithm outruns such a memory.
    """

    def __init__(
        self,
        algorithm: str,
        seed: str,
        block_tokens: int,
        tokenizer: ModelTokenizer | None,
        cache_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        self.algorithm = ALGORITHMS[algorithm]
        self.tokenizer = tokenizer
        self.block_tokens = block_tokens
        self.root = self.algorithm.root(seed)
        self.identity = ChainIdentity(
            kind="tokens" if tokenizer else "bytes",
            algorithm=algorithm,
            block_tokens=block_tokens,
            root_fingerprint=fingerprint(self.root),
            tokenizer_fingerprint=tokenizer.fingerprint if tokenizer else "",
            template_fingerprint=tokenizer.template_fingerprint if tokenizer else "",
        )
        self._fingerprint = self.identity.fingerprint
        self._unit_bytes = TOKEN_BYTES if tokenizer else BYTES_PER_TOKEN
        self.block_bytes = block_tokens * self._unit_bytes
        self.segments = SegmentTree(cache_bytes * 3 // 4)
        # Encoded texts apart from their place: a system prompt is tokenised once for all tenants' salts.
        self._encoded: LRUCache[str, tuple[bytes, int]] = LRUCache(cache_bytes // 4, itemgetter(1))
        self._lock = Lock()

    def chain(self, prompt: CanonicalPrompt) -> Chain:
        """Return the chain of `prompt`; RenderError where the model's template refuses it."""
        return self.start(prompt).chain()

    def start(self, prompt: CanonicalPrompt) -> Naming:
        """Find what is known of `prompt`; RenderError where the model's template refuses it."""
        if self.tokenizer is None:
            if self.algorithm.outruns_memory:
                return _WholeNaming(self, prompt.keys, *canonical_bytes(prompt))
            return _SegmentNaming(self, prompt.keys, _DATA, *canonical_pieces(prompt))
        if prompt.tokens is not None:
            return _SegmentNaming(self, prompt.keys, _DATA, [pack_tokens(prompt.tokens)])
        if prompt.text is not None and prompt.add_special_tokens:
            return _SegmentNaming(self, prompt.keys, _SPECIAL_TEXT, [prompt.text])
        segments, preamble = self.tokenizer.segments(prompt)
        naming = _SegmentNaming(self, prompt.keys, _TEXT, segments)
        naming.preamble_segments, naming.header = preamble
        return naming

    def chain_of_tokens(self, tokens: Sequence[int], keys: Keys) -> Chain:
        """Return the chain of a prompt given as token ids."""
        return _SegmentNaming(self, keys, _DATA, [pack_tokens(tokens)]).chain()

    def name_blocks(self, parent: bytes, data: bytes, keys: Mapping[int, bytes], first: int) -> list[bytes]:
        """Name the full blocks of packed tokens that follow `parent`; block `first` is the first of them."""
        return list(self.algorithm.name_blocks(parent, data, self.block_bytes, keys, first))

    def chain_of(self, data: bytes, names: Names, preamble_bytes: int) -> Chain:
        """Put a chain together."""
        return Chain(
            self._fingerprint,
            names,
            data,
            self.block_bytes,
            self.block_tokens,
            max(1, len(data) // self._unit_bytes),
            preamble_bytes // self._unit_bytes,
        )

    def encode(self, text: str) -> bytes:
        """Return the packed tokens of a segment, which may be known from elsewhere."""
        assert self.tokenizer is not None
        with self._lock:
            known = self._encoded.get(text)
        if known is not None:
            return known[0]
        data = self.tokenizer.encode(text)
        size = getsizeof(text) + len(data) + _ENTRY_BYTES
        with self._lock:
            if size <= self._encoded.maxsize:
                self._encoded[text] = data, size
        return data


class _WholeNaming:
    """Names a prompt in one run, remembering nothing."""

    __slots__ = ("_data", "_keys", "_namer", "_preamble_bytes", "seconds")

    def __init__(self, namer: ChainNamer, keys: Keys, data: bytes, preamble_bytes: int) -> None:
        self._namer = namer
        self._keys = keys
        self._data = data
        self._preamble_bytes = preamble_bytes
        self.seconds = len(data) // namer.block_bytes * _SECONDS_A_BLOCK_NAMED

    def chain(self) -> Chain:
        namer, data = self._namer, self._data
        if len(data) < namer.block_bytes:
            return namer.chain_of(data, Names(b"", namer.algorithm.name_bytes), self._preamble_bytes)
        keyed = self._keys.keyed_blocks(namer.block_tokens)
        names = namer.algorithm.name_blocks(namer.root, data, namer.block_bytes, keyed, 0)
        return namer.chain_of(data, names, self._preamble_bytes)


class _SegmentNaming:
    """Names a prompt piece by piece, behind those that are known."""

    __slots__ = (
        "_form",
        "_keyed",
        "_namer",
        "_path",
        "_pieces",
        "_preamble_bytes",
        "header",
        "preamble_segments",
        "seconds",
    )

    def __init__(
        self, namer: ChainNamer, keys: Keys, form: bytes, pieces: Sequence[Piece], preamble_bytes: int = 0
    ) -> None:
        """`pieces` are of a `form`; `preamble_bytes` of data precede the conversation."""
        self._namer = namer
        self._form = form
        self._keyed = keys.keyed_blocks(namer.block_tokens)
        # A segment of its own without data stands for the keys: they are a part of every name behind them.
        parts = [form]
        for block, encoded in self._keyed.items():
            parts += [block.to_bytes(4, "little"), encoded]
        self._pieces: list[Piece] = [b"".join(parts), *pieces]
        self._path = namer.segments.find(self._pieces)
        unknown = sum(map(len, self._pieces[len(self._path) :]))
        if form is _DATA:
            self.seconds = unknown // namer.block_bytes * _SECONDS_A_BLOCK_NAMED
        else:
            self.seconds = unknown * _SECONDS_A_CHARACTER_ENCODED
        self._preamble_bytes = preamble_bytes
        # Where the preamble is told by segments: so many, and the header of the message behind them.
        self.preamble_segments = 0
        self.header = ""

    def chain(self) -> Chain:
        namer = self._namer
        segments = self._path + self._name_rest()
        preamble_bytes = self._preamble_bytes or segments[self.preamble_segments].end_bytes
        if self.header:
            preamble_bytes += len(namer.encode(self.header))
        return namer.chain_of(
            b"".join([segment.data for segment in segments]),
            Names(b"".join([segment.names for segment in segments]), namer.algorithm.name_bytes),
            preamble_bytes,
        )

    def _name_rest(self) -> list[Segment]:
        path, new = self._path, list[Segment]()
        for piece in self._pieces[len(path) :]:
            if new:
                before = new[-1]
            elif path:
                before = path[-1]
            else:
                new.append(Segment(piece, parent_name=self._namer.root))
                continue
            new.append(self._extend(before, piece))
        if new:
            self._namer.segments.add(path, new)
        return new

    def _extend(self, before: Segment, piece: Piece) -> Segment:
        namer = self._namer
        data = self._data_of(piece)
        unnamed = before.remainder + data
        names = namer.algorithm.name_blocks(
            before.parent_name, unnamed, namer.block_bytes, self._keyed, before.end_blocks
        )
        return Segment(
            piece,
            data,
            names.packed,
            names[-1] if names else before.parent_name,
            unnamed[len(names) * namer.block_bytes :],
            before.end_bytes + len(data),
            before.end_blocks + len(names),
        )

    def _data_of(self, piece: Piece) -> bytes:
        if isinstance(piece, bytes):
            return piece
        if self._form is _TEXT:
            return self._namer.encode(piece)
        assert self._namer.tokenizer is not None
        return self._namer.tokenizer.encode(piece, add_special_tokens=True)
