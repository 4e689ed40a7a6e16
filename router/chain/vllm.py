"""vLLM's own names of blocks, for replicas whose cache is known by nothing else than these names.

The four functions behind vLLM's `--prefix-caching-hash-algo`, checked against names that vLLM 0.28, 0.30 and
0.33 computed. A name is `digest(serialise((parent, tokens, keys)))`, over full blocks.

The two pickle algorithms have a trap: pickle writes a repeated *object* as a reference, so equal keys may be
named apart, depending on which strings happen to be one object in the engine. Here every string of a prompt
is an object of its own, as strings are that arrive over a socket, and only the tags ("mm", ...) are shared,
as literals are. That matches wherever the strings of one block differ; where they repeat (the same picture
twice in a block, an adapter whose name is its path) it is what an engine does that received each apart.
The CBOR algorithms have no such trap: prefer them where the engine's algorithm can be chosen.
"""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import count, repeat

from xxhash import xxh3_128_digest

from router.chain.cbor import CborItem, encode, encode_array_head, encode_tokens

BlockKeys = tuple[CborItem, ...] | None

# What engines call `HIGHEST_PROTOCOL` on every Python from 3.8 on; pinned, for another one names differently.
_PICKLE_PROTOCOL = 5
# The seed of engines that were started without one, from vLLM 0.29 on (sha256 algorithms only).
_SEED_OF_SEEDLESS = "vllm-none-hash"


@dataclass(frozen=True, slots=True)
class MultimodalItem:
    """A picture or sound in the prompt: the engine's identifier, first position and length in tokens."""

    identifier: str
    offset: int
    length: int

    def __post_init__(self) -> None:
        if self.offset < 0 or self.length < 0:
            raise ValueError("a multimodal item has an offset and a length of at least 0 tokens")


@dataclass(frozen=True, slots=True)
class PromptEmbeds:
    """A prompt given as embeddings: its raw little-endian rows, one a token, each of `row_bytes` bytes."""

    rows: bytes
    row_bytes: int

    def __post_init__(self) -> None:
        if self.row_bytes < 1 or len(self.rows) % self.row_bytes:
            raise ValueError("prompt embeddings must be whole rows of at least 1 byte")

    def digest(self, start: int, stop: int) -> bytes:
        """Return the sha256 of the rows of tokens `start` .. `stop`."""
        return sha256(self.rows[start * self.row_bytes : stop * self.row_bytes]).digest()


@dataclass(frozen=True, slots=True)
class VllmKeys:
    """What vLLM mixes into a prompt's names beside its tokens. As there, an empty salt or name is none."""

    cache_salt: str | None = None
    lora_name: str | None = None
    lora_path: str | None = None
    items: tuple[MultimodalItem, ...] = ()
    prompt_embeds: PromptEmbeds | None = None


NO_KEYS = VllmKeys()


@dataclass(frozen=True, slots=True)
class _Algorithm:
    """How a seed and a block become bytes, and bytes a name."""

    serialise_seed: Callable[[str], bytes]
    serialise_block: Callable[[bytes, tuple[int, ...], BlockKeys], bytes]
    digest: Callable[[bytes], bytes]
    has_constant_root: bool


def _pickle_seed(seed: str) -> bytes:
    return pickle.dumps(seed, _PICKLE_PROTOCOL)


def _pickle_block(parent: bytes, tokens: tuple[int, ...], keys: BlockKeys) -> bytes:
    return pickle.dumps((parent, tokens, keys), _PICKLE_PROTOCOL)


def _cbor_block(parent: bytes, tokens: tuple[int, ...], keys: BlockKeys) -> bytes:
    parts = (
        encode_array_head(3),
        encode(parent),
        encode_array_head(len(tokens)),
        encode_tokens(tokens),
        encode(keys),
    )
    return b"".join(parts)


def _sha256_digest(material: bytes) -> bytes:
    return sha256(material).digest()


_ALGORITHMS: Mapping[str, _Algorithm] = {
    "vllm-sha256": _Algorithm(_pickle_seed, _pickle_block, _sha256_digest, True),
    "vllm-sha256-cbor": _Algorithm(encode, _cbor_block, _sha256_digest, True),
    "vllm-xxhash": _Algorithm(_pickle_seed, _pickle_block, xxh3_128_digest, False),
    "vllm-xxhash-cbor": _Algorithm(encode, _cbor_block, xxh3_128_digest, False),
}
VLLM_ALGORITHMS: tuple[str, ...] = tuple(_ALGORITHMS)


def vllm_root(algorithm: str, seed: str | None, *, constant_root: bool = True) -> bytes:
    """Return the parent of first blocks in an engine whose PYTHONHASHSEED is `seed`, None if unset.

    Set `constant_root=False` for vLLM 0.28 and earlier. ValueError where an engine without a seed draws its
    root at random: always on those, and on later ones with the xxhash algorithms.
    """
    chosen = _algorithm(algorithm)
    if seed is None:
        if not chosen.has_constant_root:
            raise ValueError(
                f"{algorithm} draws a random root in every process: set PYTHONHASHSEED on the replicas, "
                "and the same seed here"
            )
        if not constant_root:
            raise ValueError(
                "vLLM 0.28 and earlier draw a random root in every process: set PYTHONHASHSEED on the "
                "replicas, and the same seed here"
            )
        seed = _SEED_OF_SEEDLESS
    return chosen.digest(chosen.serialise_seed(seed))


def vllm_chain(
    algorithm: str,
    tokens: Sequence[int],
    block_tokens: int,
    root: bytes,
    keys: VllmKeys = NO_KEYS,
    *,
    tagged_keys: bool = True,
    lookahead_tokens: int = 0,
) -> list[bytes]:
    """Name every full block of `tokens` as vLLM does; names have 32 bytes (sha256) or 16 (xxhash).

    `tagged_keys` is the form of keys of vLLM 0.31 and later, without it that of 0.19 to 0.30. With
    `lookahead_tokens` (0.31 and later, engines that speculate) a name also covers that many tokens behind its
    block, and a block without them has no name.

    OverflowError for a token outside 0 .. 2**32-1; ValueError for an unknown algorithm, sizes out of range,
    an adapter without its path where tagged keys need one, and text that CBOR cannot carry (lone surrogates).
    """
    chosen = _algorithm(algorithm)
    _check(block_tokens, keys, tagged_keys, lookahead_tokens)
    # Through an array, so that integers of other kinds (numpy's, bool) are named as the integers they are.
    prompt = tuple(array("I", tokens))
    named_tokens = max(0, len(prompt) - lookahead_tokens) // block_tokens * block_tokens
    keys_of_blocks = repeat(None) if keys == NO_KEYS else _keys_of_blocks(keys, block_tokens, tagged_keys)
    names = []
    parent = root
    for start, block_keys in zip(range(0, named_tokens, block_tokens), keys_of_blocks, strict=False):
        stop = start + block_tokens
        if lookahead_tokens:
            block_keys = (block_keys, *prompt[stop : stop + lookahead_tokens])
        parent = chosen.digest(chosen.serialise_block(parent, prompt[start:stop], block_keys))
        names.append(parent)
    return names


def event_hash(name: bytes) -> int:
    """Return what stands for `name` in KV events with integer hashes: its last 8 bytes, unsigned."""
    return int.from_bytes(name[-8:], "big")


def _algorithm(label: str) -> _Algorithm:
    try:
        return _ALGORITHMS[label]
    except KeyError:
        raise ValueError(f"unknown algorithm {label!r}: one of {', '.join(VLLM_ALGORITHMS)}") from None


def _check(block_tokens: int, keys: VllmKeys, tagged_keys: bool, lookahead_tokens: int) -> None:
    if block_tokens < 1:
        raise ValueError("a block has at least 1 token")
    if lookahead_tokens < 0:
        raise ValueError("lookahead is at least 0 tokens")
    if lookahead_tokens and not tagged_keys:
        raise ValueError("no vLLM with untagged keys looks ahead")
    if keys.lora_name and keys.lora_path is None and tagged_keys:
        raise ValueError("tagged keys hold the adapter's path: give lora_path")


def _keys_of_blocks(keys: VllmKeys, block_tokens: int, tagged: bool) -> Iterator[BlockKeys]:
    """Yield the keys of block 0, 1, ... without end, in vLLM's order: adapter, items, salt, embeddings."""
    adapter = _adapter_keys(keys, tagged)
    salt = [_entry("cache_salt", _apart(keys.cache_salt), tagged)] if keys.cache_salt else []
    items = [
        MultimodalItem(_apart(item.identifier), item.offset, item.length)
        for item in sorted(keys.items, key=lambda item: item.offset)
    ]
    current = 0
    for start in count(0, block_tokens):
        stop = start + block_tokens
        overlapping, current = _items_in(items, current, start, stop)
        block_keys = list(adapter)
        for item in overlapping:
            place = (item.identifier, item.offset - start)
            block_keys.append(("mm", *place) if tagged else place)
        if start == 0:
            block_keys += salt
        if keys.prompt_embeds:
            block_keys.append(_entry("prompt_embeds", keys.prompt_embeds.digest(start, stop), tagged))
        yield tuple(block_keys) or None


def _adapter_keys(keys: VllmKeys, tagged: bool) -> list[CborItem]:
    if not keys.lora_name:
        return []
    if not tagged:
        return [_apart(keys.lora_name)]
    return [("lora", _apart(keys.lora_name), _apart(keys.lora_path or ""))]


def _entry(tag: str, value: str | bytes, tagged: bool) -> CborItem:
    return (tag, value) if tagged else value


def _items_in(
    items: Sequence[MultimodalItem], current: int, start: int, stop: int
) -> tuple[list[MultimodalItem], int]:
    """Return the items in tokens `start` .. `stop`, and the first that may lie in the next block.

    Items that overlap one another (sound inside a video) make this differ from a plain test of overlap: vLLM
    looks at no item behind one that outlasts the block, and at none at all behind the end of the last one.
    """
    inside: list[MultimodalItem] = []
    if not items or items[-1].offset + items[-1].length <= start:
        return inside, current
    while current < len(items) and items[current].offset < stop:
        end = items[current].offset + items[current].length
        if end > start:
            inside.append(items[current])
        if end > stop:
            break
        current += 1
    return inside, current


def _apart(text: str) -> str:
    """Return a copy that is an object of its own (but for a single character, of which Python keeps one)."""
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "surrogatepass")
