"""Names of blocks as vLLM gives them: its own vectors, and what vectors cannot show."""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping, Sequence
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.chain.vllm import (
    NO_KEYS,
    VLLM_ALGORITHMS,
    MultimodalItem,
    PromptEmbeds,
    VllmKeys,
    event_hash,
    vllm_chain,
    vllm_root,
)

FILE = json.loads((Path(__file__).parent / "data" / "vllm_block_hash_vectors.json").read_text())
GROUPS = {
    f"{version}-{algorithm}": list(group)
    for (version, algorithm), group in groupby(
        FILE["vectors"], lambda vector: (vector["vllm"], vector["algo"])
    )
}
TOKENS = list(range(1000, 1200))


def version_of(vector: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(map(int, vector["vllm"].split(".")))


def label_of(vector: Mapping[str, Any]) -> str:
    return "vllm-" + str(vector["algo"]).replace("_", "-")


def keys_of(inputs: Mapping[str, Any]) -> VllmKeys:
    return VllmKeys(
        cache_salt=inputs.get("cache_salt"),
        lora_name=inputs.get("lora_name"),
        lora_path=inputs.get("lora_path"),
        items=tuple(MultimodalItem(*item) for item in inputs.get("mm", ())),
        # The vectors' embeddings are 200 rows of 8 floats that count up from 0.
        prompt_embeds=PromptEmbeds(array("f", range(1600)).tobytes(), 32)
        if "prompt_embeds" in inputs
        else None,
    )


def test_the_file_holds_every_vector() -> None:
    assert sum(map(len, GROUPS.values())) == len(FILE["vectors"]) == 356
    assert {label_of(vector) for vector in FILE["vectors"]} == set(VLLM_ALGORITHMS)


@pytest.mark.parametrize("vectors", GROUPS.values(), ids=GROUPS.keys())
def test_vectors(vectors: Sequence[Mapping[str, Any]]) -> None:
    for vector in vectors:
        case = (vector["case"], vector["pythonhashseed"], vector["block_size"])
        version = version_of(vector)
        root = vllm_root(label_of(vector), vector["pythonhashseed"], constant_root=version >= (0, 29))
        assert root.hex() == vector["none_hash"], case
        names = vllm_chain(
            label_of(vector),
            FILE["token_sets"][vector["tokens"]],
            vector["block_size"],
            root,
            keys_of(vector["inputs"]),
            tagged_keys=version >= (0, 31),
            lookahead_tokens=vector["inputs"].get("num_hash_lookahead_tokens", 0),
        )
        assert [name.hex() for name in names] == vector["hashes_hex"], case
        assert [event_hash(name) for name in names] == vector["event_int64"], case


@pytest.mark.parametrize("algorithm", ["vllm-xxhash", "vllm-xxhash-cbor"])
def test_a_random_root_cannot_be_had(algorithm: str) -> None:
    with pytest.raises(ValueError, match="PYTHONHASHSEED"):
        vllm_root(algorithm, None)


@pytest.mark.parametrize("algorithm", VLLM_ALGORITHMS)
def test_before_the_constant_root_a_seed_is_needed(algorithm: str) -> None:
    with pytest.raises(ValueError, match="PYTHONHASHSEED"):
        vllm_root(algorithm, None, constant_root=False)
    assert vllm_root(algorithm, "7", constant_root=False) == vllm_root(algorithm, "7")


def test_the_four_algorithms_and_their_seeds_have_roots_apart() -> None:
    roots = {vllm_root(algorithm, seed) for algorithm in VLLM_ALGORITHMS for seed in ("", "0", "1")}
    assert len(roots) == 12


@pytest.mark.parametrize("algorithm", VLLM_ALGORITHMS)
@given(
    left=st.lists(st.integers(0, 3), max_size=40),
    right=st.lists(st.integers(0, 3), max_size=40),
    shared=st.integers(0, 40),
    block_tokens=st.integers(1, 9),
)
@settings(max_examples=40, deadline=None)
def test_chains_agree_as_far_as_the_blocks_do(
    algorithm: str, left: list[int], right: list[int], shared: int, block_tokens: int
) -> None:
    right = left[:shared] + right
    root = vllm_root(algorithm, "0")
    left_chain, right_chain = (vllm_chain(algorithm, tokens, block_tokens, root) for tokens in (left, right))
    assert len(left_chain) == len(left) // block_tokens
    for depth, (mine, yours) in enumerate(zip(left_chain, right_chain, strict=False), 1):
        end = depth * block_tokens
        assert (mine == yours) == (left[:end] == right[:end])


@given(
    offset=st.integers(0, 120),
    length=st.integers(1, 80),
    salt=st.sampled_from([None, "", "tenant"]),
    lookahead_tokens=st.integers(0, 5),
)
@settings(max_examples=40, deadline=None)
def test_names_of_a_shorter_prompt_start_those_of_a_longer(
    offset: int, length: int, salt: str | None, lookahead_tokens: int
) -> None:
    keys = VllmKeys(cache_salt=salt, items=(MultimodalItem("picture", offset, length),))
    for algorithm in VLLM_ALGORITHMS:
        root = vllm_root(algorithm, "0")
        long = vllm_chain(algorithm, TOKENS, 16, root, keys, lookahead_tokens=lookahead_tokens)
        short = vllm_chain(algorithm, TOKENS[:100], 16, root, keys, lookahead_tokens=lookahead_tokens)
        assert len(short) == (100 - lookahead_tokens) // 16
        assert long[: len(short)] == short


@pytest.mark.parametrize("tagged_keys", [True, False])
@pytest.mark.parametrize("algorithm", VLLM_ALGORITHMS)
def test_every_key_changes_the_names(algorithm: str, tagged_keys: bool) -> None:
    picture = MultimodalItem("a", 0, 4)
    variants = [
        NO_KEYS,
        VllmKeys(cache_salt="tenant"),
        VllmKeys(lora_name="adapter", lora_path="/one"),
        VllmKeys(items=(picture,)),
        VllmKeys(items=(MultimodalItem("b", 0, 4),)),
        VllmKeys(items=(MultimodalItem("a", 1, 4),)),
        VllmKeys(prompt_embeds=PromptEmbeds(b"\0" * 200, 1)),
    ]
    if tagged_keys:
        variants.append(VllmKeys(lora_name="adapter", lora_path="/two"))
        variants.append(VllmKeys(cache_salt="adapter"))
    root = vllm_root(algorithm, "0")
    chains = [vllm_chain(algorithm, TOKENS, 16, root, keys, tagged_keys=tagged_keys) for keys in variants]
    for names in zip(*chains, strict=True):
        assert len(set(names)) == len(variants)


def test_an_empty_salt_is_none_as_in_vllm() -> None:
    root = vllm_root("vllm-sha256", None)
    assert vllm_chain("vllm-sha256", TOKENS, 16, root, VllmKeys(cache_salt="")) == vllm_chain(
        "vllm-sha256", TOKENS, 16, root
    )


@pytest.mark.parametrize("algorithm", VLLM_ALGORITHMS)
def test_names_depend_on_the_text_of_keys_not_on_the_objects(algorithm: str) -> None:
    identifier = "0123456789abcdef"
    copy = identifier[:8] + identifier[8:]
    assert copy is not identifier
    root = vllm_root(algorithm, "0")
    chains = [
        vllm_chain(
            algorithm,
            TOKENS,
            16,
            root,
            VllmKeys(
                cache_salt=first,
                lora_name=first,
                lora_path=second,
                items=(MultimodalItem(first, 0, 4), MultimodalItem(second, 8, 4)),
            ),
        )
        for first, second in ((identifier, identifier), (identifier, copy), (copy, identifier))
    ]
    assert chains[0] == chains[1] == chains[2]


def test_a_repeated_identifier_is_written_twice() -> None:
    """The bytes of one block whose picture comes twice, each string written out and none referred to."""
    identifier = "0123456789abcdef"
    keys = VllmKeys(items=(MultimodalItem(identifier, 0, 1), MultimodalItem(identifier, 2, 1)))
    text = b"\x8c\x10" + identifier.encode()
    body = (
        b"C\x03\x00\x01\x02\x94(K\x01K\x02K\x03K\x04t\x94"
        b"\x8c\x02mm\x94" + text + b"\x94K\x00\x87\x94"
        b"h\x02" + text + b"\x94K\x02\x87\x94\x86\x94\x87\x94."
    )
    material = b"\x80\x05\x95" + len(body).to_bytes(8, "little") + body
    assert vllm_chain("vllm-sha256", [1, 2, 3, 4], 4, b"\x00\x01\x02", keys) == [sha256(material).digest()]


def test_items_may_come_in_any_order() -> None:
    one, two = MultimodalItem("one", 3, 20), MultimodalItem("two", 40, 20)
    root = vllm_root("vllm-sha256-cbor", None)
    chains = [
        vllm_chain("vllm-sha256-cbor", TOKENS, 64, root, VllmKeys(items=items))
        for items in ((one, two), (two, one))
    ]
    assert chains[0] == chains[1]


def test_items_inside_another_are_looked_at_as_vllm_does() -> None:
    """Sound inside a video: only the outer item until it ends, none behind the end of the last one."""
    root = vllm_root("vllm-sha256-cbor", None)

    def chain(*items: MultimodalItem) -> list[bytes]:
        return vllm_chain("vllm-sha256-cbor", TOKENS, 16, root, VllmKeys(items=items))

    video, sound = MultimodalItem("video", 0, 100), MultimodalItem("sound", 10, 10)
    both = chain(video, sound)
    assert both[:2] == chain(video)[:2]
    # From block 2 on neither counts: the last item by offset has ended.
    assert both[2] != chain(video)[2]
    assert both[2:] == vllm_chain("vllm-sha256-cbor", TOKENS[32:], 16, both[1])
    # An item that ends with the block does not outlast it.
    clip = MultimodalItem("clip", 0, 16)
    assert chain(clip, sound)[0] != chain(clip)[0]


@pytest.mark.parametrize("algorithm", VLLM_ALGORITHMS)
def test_integers_of_another_kind_are_the_same_tokens(algorithm: str) -> None:
    class Id:
        def __init__(self, value: int) -> None:
            self._value = value

        def __index__(self) -> int:
            return self._value

    root = vllm_root(algorithm, "0")
    plain = vllm_chain(algorithm, [0, 1, 300, 70000], 4, root)
    assert vllm_chain(algorithm, [False, True, 300, 70000], 4, root) == plain
    assert vllm_chain(algorithm, [Id(0), Id(1), Id(300), Id(70000)], 4, root) == plain  # type: ignore[list-item]
    assert vllm_chain(algorithm, array("I", [0, 1, 300, 70000]), 4, root) == plain


def test_a_prompt_shorter_than_a_block_and_its_lookahead_has_no_names() -> None:
    assert vllm_chain("vllm-xxhash", [1] * 17, 16, b"root", lookahead_tokens=2) == []
    assert vllm_chain("vllm-xxhash", [], 16, b"root", lookahead_tokens=2) == []
    assert len(vllm_chain("vllm-xxhash", [1] * 18, 16, b"root", lookahead_tokens=2)) == 1


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"algorithm": "sha256"}, ValueError, "unknown algorithm"),
        ({"block_tokens": 0}, ValueError, "block"),
        ({"lookahead_tokens": -1}, ValueError, "lookahead"),
        ({"lookahead_tokens": 1, "tagged_keys": False}, ValueError, "untagged"),
        ({"keys": VllmKeys(lora_name="adapter")}, ValueError, "lora_path"),
        ({"keys": VllmKeys(cache_salt="\ud800")}, ValueError, "surrogates"),
        ({"tokens": [-1] * 16}, OverflowError, "negative"),
        ({"tokens": [2**32] * 16}, OverflowError, "maximum|too large"),
    ],
)
def test_refusals(changes: dict[str, Any], error: type[Exception], match: str) -> None:
    arguments = {
        "algorithm": "vllm-sha256-cbor",
        "tokens": TOKENS,
        "block_tokens": 16,
        "root": b"",
        **changes,
    }
    with pytest.raises(error, match=match):
        vllm_chain(**arguments)


def test_values_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="offset"):
        MultimodalItem("a", -1, 4)
    with pytest.raises(ValueError, match="rows"):
        PromptEmbeds(b"abc", 2)
    with pytest.raises(ValueError, match="rows"):
        PromptEmbeds(b"", 0)
    with pytest.raises(ValueError, match="unknown algorithm"):
        vllm_root("md5", "0")
