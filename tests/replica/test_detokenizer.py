"""Text from tokens: exact, whole characters only, stop strings across any border."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from replica.detokenizer import StopScanner, TokenizerDetokenizer, WordDetokenizer
from router.chain.chain import unpack_tokens


def byte_tokenizer() -> Tokenizer:
    """A tokenizer whose tokens are single bytes, so that every character of several is split."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: index for index, symbol in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


TOKENIZER = byte_tokenizer()


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=40))
def test_pieces_make_the_text_and_split_no_character(text: str) -> None:
    detokenizer = TokenizerDetokenizer(TOKENIZER)
    pieces = [detokenizer.feed(token) for token in TOKENIZER.encode(text).ids]
    pieces.append(detokenizer.rest())
    assert "".join(pieces) == text
    if "�" not in text:
        assert not any("�" in piece for piece in pieces)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=40).filter(lambda text: "\0" not in text))
def test_words_of_bytes_make_the_text(text: str) -> None:
    data = text.encode()
    detokenizer = WordDetokenizer()
    pieces = [detokenizer.feed(word) for word in unpack_tokens(data + b"\0" * (-len(data) % 4))]
    assert "".join([*pieces, detokenizer.rest()]) == text


def test_a_space_at_the_start_of_a_token_is_kept_within_the_text() -> None:
    # Such tokenizers strip the space that opens a text, and must not take each token for a text of its own.
    tokenizer = Tokenizer(models.WordLevel({"▁hello": 0, "▁world": 1, "s": 2}, unk_token="s"))
    tokenizer.decoder = decoders.Metaspace()
    detokenizer = TokenizerDetokenizer(tokenizer)
    assert [detokenizer.feed(token) for token in (0, 1, 2, 1)] == ["hello", " world", "s", " world"]


def test_bytes_that_are_no_text_do_not_hold_the_rest_back() -> None:
    detokenizer = TokenizerDetokenizer(TOKENIZER)
    continuation = TOKENIZER.encode("é").ids[1]
    pieces = [detokenizer.feed(continuation) for _ in range(20)]
    assert any(pieces)
    assert detokenizer.feed(TOKENIZER.encode("x").ids[0]).endswith("x")


def test_an_unfinished_character_is_shown_at_the_end() -> None:
    detokenizer = TokenizerDetokenizer(TOKENIZER)
    assert detokenizer.feed(TOKENIZER.encode("é").ids[0]) == ""
    assert detokenizer.rest() == "�"


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_a_stop_string_is_found_across_borders(size: int) -> None:
    scanner = StopScanner(["END", "nd of"])
    text = "this is the eEN END of it"
    shown = "".join(scanner.feed(text[at : at + size]) for at in range(0, len(text), size))
    assert shown == "this is the eEN "
    assert scanner.stopped
    assert scanner.feed("more") == ""


@settings(max_examples=200, deadline=None)
@given(st.text("ab", max_size=20), st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3))
def test_scanning_by_character_shows_all_before_the_first_stop(text: str, stops: list[str]) -> None:
    scanner = StopScanner(stops)
    shown = "".join(map(scanner.feed, text))
    if not scanner.stopped:
        shown += scanner.rest()
    # The stop that is complete first decides.
    ends = [(place + len(stop), place) for stop in stops if (place := text.find(stop)) >= 0]
    first = min(ends)[0] if ends else None
    expected = text if first is None else text[: min(at for end, at in ends if end == first)]
    assert shown == expected


def test_what_may_become_a_stop_is_held_back() -> None:
    scanner = StopScanner(["xyz"])
    assert scanner.feed("abxy") == "ab"
    assert scanner.feed("a") == "xya"
    assert scanner.feed("x") == ""
    assert scanner.rest() == "x"
