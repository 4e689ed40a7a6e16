"""Batches of events are read in every form that engines send, and nothing else breaks the reader."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.chain.chain import unpack_tokens
from router.events.decode import (
    MAX_PAYLOAD_BYTES,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    DecodeError,
    decode_batch,
)

_EXAMPLES: dict[str, Any] = json.loads((Path(__file__).parent / "data/kv_event_examples.json").read_text())


def _batch(*events: Any) -> bytes:
    return msgspec.msgpack.encode([1.5, list(events), 0])


def _stored(**fields: Any) -> dict[str, Any]:
    return {
        "type": "BlockStored",
        "block_hashes": [1, 2],
        "parent_block_hash": None,
        "token_ids": [7] * 32,
        "block_size": 16,
        "medium": "GPU",
        **fields,
    }


def _read(**fields: Any) -> BlockStored:
    (event,) = decode_batch(_batch(_stored(**fields))).events
    assert isinstance(event, BlockStored)
    return event


@pytest.mark.parametrize("version", _EXAMPLES)
def test_examples_of_engines_are_read(version: str) -> None:
    example = _EXAMPLES[version]
    batch = decode_batch(bytes.fromhex(example["payload_hex"]))
    told = example["decoded"][1]
    first = (
        told[0]
        if isinstance(told[0], dict)
        else dict(zip(example["fields_block_stored"], told[0][1:], strict=False))
    )
    stored, removed, cleared = batch.events
    assert isinstance(stored, BlockStored)
    assert stored.hashes == [value % 2**64 for value in first["block_hashes"]]
    assert stored.parent is None
    assert unpack_tokens(stored.tokens) == first["token_ids"]
    assert (stored.block_tokens, stored.place, stored.unfit) == (16, "GPU", "")
    # vLLM 0.11 does not tell salts.
    assert stored.salt == (None if version == "vllm-0.11.2" else "tenant-42")
    assert stored.plain_blocks == len(stored.hashes)
    assert removed == BlockRemoved([stored.hashes[0]], "GPU")
    assert cleared == AllBlocksCleared()
    assert batch.unknown == 0


def test_a_hash_is_one_key_in_every_form() -> None:
    signed, unsigned = -3697559727288641931, 14749184346420909685
    whole = b"\x01" * 24 + unsigned.to_bytes(8, "big")
    (event,) = decode_batch(
        _batch({"type": "BlockRemoved", "block_hashes": [signed, unsigned, whole]})
    ).events
    assert event == BlockRemoved([unsigned] * 3, None)


def test_events_of_later_versions_are_read_as_far_as_known() -> None:
    later = ["BlockStored", [1], None, [7] * 16, 16, None, "GPU", None, None, 0, None, None, "new", {"x": 1}]
    batch = decode_batch(_batch(later, {"type": "BlockMoved", "to": 3}, ["BlockLost"], _stored(tier_of=[])))
    assert batch.unknown == 2
    assert len(batch.events) == 2


@pytest.mark.parametrize(
    ("lora", "keys", "salt", "plain"),
    [
        (None, [["tenant"], None], "tenant", 2),
        (None, [[["cache_salt", "tenant"]], None], "tenant", 2),
        ("adapter", [["adapter", "tenant"], ["adapter"]], "tenant", 2),
        ("adapter", [["adapter", "adapter"], ["adapter"]], "adapter", 2),
        ("adapter", [[["lora", "adapter", "/path"], ["cache_salt", "tenant"]], ["adapter"]], "tenant", 2),
        (None, [["tenant"], [["picture", -3]]], "tenant", 1),
        (None, [["tenant"], [["mm", "picture", 4]]], "tenant", 1),
        (None, [["picture", "tenant"], None], "picture", 0),
        (None, [None, ["picture"]], None, 1),
        (None, [None, [b"digest"]], None, 1),
        (None, [None, [["prompt_embeds", b"digest"]]], None, 1),
        (None, [None, {"new": 1}], None, 1),
        ("adapter", [[["lora", "another", "/path"]], None], None, 0),
        # Engines that speculate: the next tokens follow the keys.
        (None, [[["tenant"], 17], [None, 18]], "tenant", 2),
        (None, [[[["cache_salt", "tenant"]], 17, 18], [None, 18, 19]], "tenant", 2),
    ],
)
def test_keys_are_read(lora: str | None, keys: list[Any], salt: str | None, plain: int) -> None:
    event = _read(lora_name=lora, extra_keys=keys)
    assert event.plain_blocks == plain
    if plain:
        assert event.salt == salt
    assert event.adapter == lora


def test_a_salt_is_one_of_a_prompts_first_block_only() -> None:
    assert _read(parent_block_hash=9, extra_keys=[["picture"], None]).plain_blocks == 0
    assert _read(cache_salt="").salt is None


def test_another_revision_of_an_adapter_is_told_apart() -> None:
    first = _read(lora_name="a", lora_id=1)
    assert _read(lora_name="a", lora_id=1).revision == first.revision
    assert _read(lora_name="a", lora_id=2).revision != first.revision
    tagged = _read(lora_name="a", lora_id=1, extra_keys=[[["lora", "a", "/v2"]], [["lora", "a", "/v2"]]])
    assert tagged.revision != first.revision


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"token_ids": []}, "no tokens"),
        ({"token_ids": [[1, 2]] * 32}, "pairs of tokens"),
        ({"token_ids": [7] * 31}, "tokens that do not fill the blocks"),
        ({"token_ids": [-1] * 32}, "tokens that are no ids"),
        ({"token_ids": ["a"] * 32}, "tokens that are no ids"),
        ({"lora_id": 3}, "an adapter without its name"),
    ],
)
def test_tokens_that_cannot_be_named_are_told(fields: dict[str, Any], reason: str) -> None:
    assert _read(**fields).unfit == reason


def test_only_the_first_group_of_full_attention_is_read() -> None:
    batch = decode_batch(
        _batch(
            _stored(group_idx=1),
            _stored(group_idx=0, kv_cache_spec_kind="sliding_window", kv_cache_spec_sliding_window=128),
            {"type": "BlockRemoved", "block_hashes": [1], "group_idx": 1},
        )
    )
    assert batch.events == []


def test_another_machines_place_is_a_place_of_its_own() -> None:
    assert _read(medium="CPU", locality="REMOTE").place == "CPU@REMOTE"
    assert _read(medium="CPU", locality="LOCAL").place == "CPU"


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode({}),
        msgspec.msgpack.encode([]),
        msgspec.msgpack.encode(["now", []]),
        msgspec.msgpack.encode([float("nan"), []]),
        _batch(3),
        _batch([]),
        _batch({"block_hashes": []}),
        _batch(["BlockRemoved"]),
        _batch(_stored(block_hashes=[None])),
        _batch(_stored(block_hashes=[True])),
        _batch(_stored(block_hashes=[b""])),
        _batch(_stored(block_size=-1)),
        _batch(_stored(medium="x" * 2000)),
        _batch(_stored(extra_keys=3)),
        b"\xdd\xff\xff\xff\xff",
        b"\x91" * 100_000,
        b"\xc0" * (MAX_PAYLOAD_BYTES + 1),
    ],
)
def test_what_is_no_batch_is_refused(payload: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_batch(payload)


_ATOMS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary()
_VALUES = st.recursive(
    _ATOMS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4)
)


@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_mangled_events_raise_nothing_else(data: st.DataObject) -> None:
    event: Any = _stored(lora_name=None, extra_keys=[None, None])
    for name in data.draw(st.lists(st.sampled_from(sorted(event)), max_size=3)):
        event[name] = data.draw(_VALUES)
    if data.draw(st.booleans()):
        event = [event["type"], *list(event.values())[1:]]
        event = event[: data.draw(st.integers(0, len(event)))]
    payload = msgspec.msgpack.encode([1.0, [event, data.draw(_VALUES)], None])
    with suppress(DecodeError):
        decode_batch(payload)


@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_mangled_bytes_raise_nothing_else(data: st.DataObject) -> None:
    payload = bytearray.fromhex(_EXAMPLES[data.draw(st.sampled_from(sorted(_EXAMPLES)))]["payload_hex"])
    for _ in range(data.draw(st.integers(1, 8))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(payload)))
    mangled = bytes(payload[:cut] if data.draw(st.booleans()) else payload)
    with suppress(DecodeError):
        decode_batch(mangled)
