"""The namer: from a canonical prompt to its chain, doing for a conversation's next turn only what is new."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from threading import Lock

from cachetools import LRUCache

from router.chain.algorithms import ALGORITHMS
from router.chain.chain import TOKEN_BYTES, Chain, ChainIdentity, fingerprint, pack_tokens
from router.chain.keys import Keys
from router.chain.prompt import CanonicalPrompt, canonical_pieces
from router.chain.tokenizer import ModelTokenizer

# What a token is taken for, in bytes of text, where there is no tokenizer (English measures 4.4).
BYTES_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class _Segment:
    """The chain's state behind one segment: its data, the names it completed, what is left unnamed."""

    data: bytes
    names: Sequence[bytes]
    parent: bytes
    remainder: bytes

    @property
    def size(self) -> int:
        # A name costs its bytes and about 41 more as an object and a list slot; the entry about 400.
        return len(self.data) + len(self.names) * (len(self.parent) + 41) + 400


class ChainNamer:
    """Names the prompts of one model. Thread-safe.

    With a tokenizer the chain is over its tokens, without over canonical bytes. Both are cut into segments
    at message borders, and what is known of a segment is remembered by all that went before it, so that a
    turn costs its new message only (`cache_bytes` bounds that memory).
    """

    def __init__(
        self,
        algorithm: str,
        seed: str,
        block_tokens: int,
        tokenizer: ModelTokenizer | None,
        cache_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        self._algorithm = ALGORITHMS[algorithm]
        self.tokenizer = tokenizer
        self.block_tokens = block_tokens
        self.root = self._algorithm.root(seed)
        self.identity = ChainIdentity(
            kind="tokens" if tokenizer else "bytes",
            algorithm=algorithm,
            block_tokens=block_tokens,
            root_fingerprint=fingerprint(self.root),
            tokenizer_fingerprint=tokenizer.fingerprint if tokenizer else "",
            template_fingerprint=tokenizer.template_fingerprint if tokenizer else "",
        )
        self._fingerprint = self.identity.fingerprint
        unit = TOKEN_BYTES if tokenizer else BYTES_PER_TOKEN
        self.block_bytes = block_tokens * unit
        self._lock = Lock()
        self._states: LRUCache[bytes, _Segment] = LRUCache(cache_bytes * 3 // 4, lambda state: state.size)
        # Encoded segments apart from their place: a system prompt is tokenised once for all tenants' salts.
        self._encoded: LRUCache[bytes, bytes] = LRUCache(cache_bytes // 4, lambda data: len(data) + 200)

    def chain(self, prompt: CanonicalPrompt) -> Chain:
        """Return the chain of `prompt`; RenderError where the model's template refuses it."""
        if prompt.tokens is not None and self.tokenizer:
            return self.chain_of_tokens(prompt.tokens, prompt.keys)
        if self.tokenizer is None:
            return self._chain_of(*canonical_pieces(prompt), prompt.keys)
        if prompt.text is not None and prompt.add_special_tokens:
            data = self.tokenizer.encode(prompt.text, add_special_tokens=True)
            return self._chain_of([data], 0, prompt.keys)
        segments, preamble = self.tokenizer.segments(prompt)
        return self._chain_of(
            [segment.encode() for segment in segments],
            sum(len(self._encode(text.encode())) for text in preamble),
            prompt.keys,
            encode=True,
        )

    def chain_of_tokens(self, tokens: Sequence[int], keys: Keys) -> Chain:
        """Return the chain of a prompt given as token ids."""
        return self._chain_of([pack_tokens(tokens)], 0, keys)

    def name_blocks(self, parent: bytes, data: bytes, keys: Mapping[int, bytes], first: int) -> list[bytes]:
        """Name the full blocks of packed tokens that follow `parent`; block `first` is the first of them."""
        return self._algorithm.name_blocks(parent, data, self.block_bytes, keys, first)

    def _chain_of(self, pieces: list[bytes], preamble_bytes: int, keys: Keys, encode: bool = False) -> Chain:
        """Chain pieces of data (or, with `encode`, of text) one after the other."""
        keyed = keys.keyed_blocks(self.block_tokens)
        state = _Segment(b"", (), self.root, b"")
        # Text and data are told apart, lest token ids that spell a text be taken for its tokens.
        known_as = b"".join(block.to_bytes(4, "little") + encoded for block, encoded in keyed.items())
        place = blake2b(known_as, digest_size=16, person=b"text" if encode else b"data").digest()
        names: list[bytes] = []
        data: list[bytes] = []
        for piece in pieces:
            place = blake2b(piece, digest_size=16, key=place).digest()
            with self._lock:
                known = self._states.get(place)
            if known is None:
                known = self._extend(state, self._encode(piece) if encode else piece, keyed, len(names))
                self._remember(place, known)
            state = known
            names += state.names
            data.append(state.data)
        whole = b"".join(data)
        per_token = self.block_bytes // self.block_tokens
        return Chain(
            identity=self._fingerprint,
            names=names,
            data=whole,
            block_bytes=self.block_bytes,
            block_tokens=self.block_tokens,
            prompt_tokens=max(1, len(whole) // per_token),
            preamble_tokens=preamble_bytes // per_token,
        )

    def _extend(self, state: _Segment, data: bytes, keys: Mapping[int, bytes], first: int) -> _Segment:
        unnamed = state.remainder + data
        names = self._algorithm.name_blocks(state.parent, unnamed, self.block_bytes, keys, first)
        parent = names[-1] if names else state.parent
        return _Segment(data, names, parent, unnamed[len(names) * self.block_bytes :])

    def _encode(self, piece: bytes) -> bytes:
        assert self.tokenizer is not None
        key = blake2b(piece, digest_size=16).digest()
        with self._lock:
            known = self._encoded.get(key)
        if known is None:
            known = self.tokenizer.encode(piece.decode())
            with self._lock:
                if len(known) + 200 <= self._encoded.maxsize:
                    self._encoded[key] = known
        return known

    def _remember(self, place: bytes, state: _Segment) -> None:
        with self._lock:
            if state.size <= self._states.maxsize:
                self._states[place] = state
