"""Keys: two different key sets never encode alike, and each reaches the blocks it should."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from router.chain.keys import ImageKey, Keys

# Letters that tempt an encoder: separators, digits that look like lengths, tag bytes.
_words = st.text(alphabet="a:|\x00\x01\x02\x04=,1é", max_size=6)
_maybe = st.none() | _words
_images = st.lists(
    st.builds(
        ImageKey,
        digest=st.binary(min_size=1, max_size=4),
        start_tokens=st.integers(0, 40),
        length_tokens=st.integers(0, 20),
    ),
    max_size=3,
).map(tuple)
_keys = st.builds(Keys, model=_words, adapter=_maybe, adapter_revision=_maybe, salt=_maybe, images=_images)


def _as_seen_by_blocks(keys: Keys) -> list[list[tuple[int, bytes]]]:
    """What of the images each of the first blocks overlaps: offset and digest."""
    return [
        [
            (image.start_tokens - start, image.digest)
            for image in keys.images
            if image.start_tokens < start + 16 and image.start_tokens + max(image.length_tokens, 1) > start
        ]
        for start in range(0, 80, 16)
    ]


@settings(max_examples=500, deadline=None)
@given(_keys, _keys)
def test_key_sets_encode_alike_only_if_they_are_alike(one: Keys, other: Keys) -> None:
    encoded = [[keys.of_block(index, 16) for index in range(5)] for keys in (one, other)]
    alike = (one.model, one.adapter, one.adapter_revision, one.salt) == (
        other.model,
        other.adapter,
        other.adapter_revision,
        other.salt,
    ) and _as_seen_by_blocks(one) == _as_seen_by_blocks(other)
    assert (encoded[0] == encoded[1]) == alike


def test_every_kind_of_key_tells_prompts_apart() -> None:
    base = Keys("m")
    others = [
        Keys("m2"),
        Keys("m", adapter="a"),
        Keys("m", adapter_revision="a"),
        Keys("m", salt="a"),
        Keys("m", salt=""),
        Keys("m", adapter="a", adapter_revision="1"),
        Keys("m", adapter="a", adapter_revision="2"),
        Keys("m", images=(ImageKey(b"red", 3, 4),)),
        Keys("m", images=(ImageKey(b"blue", 3, 4),)),
        Keys("m", images=(ImageKey(b"red", 4, 4),)),
    ]
    encoded = {keys.of_block(0, 16) for keys in (base, *others)}
    assert len(encoded) == 1 + len(others)


def test_a_picture_keys_the_blocks_it_overlaps_and_no_other() -> None:
    keys = Keys("m", images=(ImageKey(b"red", 30, 4),))
    assert sorted(keys.keyed_blocks(16)) == [0, 1, 2]
    assert keys.of_block(3, 16) == b""
    assert keys.of_block(0, 16) == Keys("m").of_block(0, 16)
    assert keys.of_block(1, 16) != keys.of_block(2, 16)
