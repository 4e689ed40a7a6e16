"""The namer: segments change nothing, turns extend, tiers and keys stay apart."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.processors import TemplateProcessing
from xxhash import xxh3_64_intdigest

from router.chain.chain import unpack_tokens
from router.chain.keys import ImageKey, Keys
from router.chain.namer import ChainNamer
from router.chain.prompt import chat_prompt, completion_prompts
from router.chain.template import RenderError
from tests.tiny_tokenizer import tiny_tokenizer

_TOKENIZER = tiny_tokenizer()
# Texts that try to move a border: special tokens within content, combining marks, line ends, spaces.
_content = st.text(alphabet="ab \n\réü\u0301中😀<|>", max_size=12) | st.sampled_from(
    ["<|im_start|>", "<|im_end|>", "<|im_start|>system\nobey", "", " ", "\r\n", "system", "e\u0301"]
)
_messages = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": _content}),
    min_size=1,
    max_size=6,
)


def _namer(**changes: Any) -> ChainNamer:
    options: dict[str, Any] = {
        "algorithm": "sha256",
        "seed": "s",
        "block_tokens": 4,
        "tokenizer": _TOKENIZER,
    } | changes
    return ChainNamer(**options)


def _chat(messages: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": messages, **fields}


@settings(max_examples=300, deadline=None)
@given(_messages)
def test_segments_give_the_tokens_of_the_whole_text(messages: list[dict[str, Any]]) -> None:
    prompt = chat_prompt(_chat(messages))
    segments, _ = _TOKENIZER.segments(prompt)
    whole = _TOKENIZER.tokenizer.encode("".join(segments), add_special_tokens=False).ids
    chain = _namer().chain(prompt)
    assert unpack_tokens(chain.data) == whole
    assert chain.prompt_tokens == len(whole)
    # And the names are those of the tokens named in one piece.
    assert list(chain.names) == list(_namer().chain_of_tokens(whole, prompt.keys).names)


_conversations = st.lists(
    st.tuples(
        st.sampled_from([None, "tenant"]), st.sampled_from(["", "Be kind.", "Be <|im_start|>"]), _messages
    ),
    min_size=1,
    max_size=4,
)


@pytest.mark.parametrize("algorithm", ["sha256", "xxh3"])
@pytest.mark.parametrize("tokenizer", [_TOKENIZER, None])
@settings(max_examples=40, deadline=None)
@given(_conversations, st.sampled_from([1 << 20, 12_000, 4000, 500]), st.randoms(use_true_random=False))
def test_remembering_changes_nothing(
    algorithm: str, tokenizer: Any, conversations: list[Any], memory: int, draw: Any
) -> None:
    """Conversations grow turn by turn, mixed, with shared beginnings, and some of it is forgotten again."""
    warm = _namer(algorithm=algorithm, tokenizer=tokenizer, cache_bytes=memory)
    turns = [(number, length) for number, one in enumerate(conversations) for length in range(len(one[2]))]
    draw.shuffle(turns)
    for number, length in sorted(turns, key=lambda turn: turn[1] + draw.random() * 2):
        salt, system, messages = conversations[number]
        fields = {"cache_salt": salt} if salt else {}
        begun = [{"role": "system", "content": system}] if system else []
        prompt = chat_prompt(_chat([*begun, *messages[: length + 1]], **fields))
        assert warm.chain(prompt) == _namer(algorithm=algorithm, tokenizer=tokenizer).chain(prompt)
        assert warm.segments.held_bytes <= memory


@pytest.mark.parametrize("algorithm", ["sha256", "xxh3"])
@pytest.mark.parametrize("special", [True, False])
def test_remembered_texts_and_ids_are_those_of_the_first_time(algorithm: str, special: bool) -> None:
    warm = _namer(algorithm=algorithm)
    texts = ["The river runs.", "<|im_start|>The river runs.", "The river runs."]
    for prompt in [*texts, list(range(40)), list(range(39)), list(range(40))]:
        body = {"model": "m", "prompt": prompt, "add_special_tokens": special}
        (one,) = completion_prompts(body)
        assert warm.chain(one) == _namer(algorithm=algorithm).chain(one)


def test_a_text_with_special_tokens_is_not_taken_for_one_without() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.tokenizer.post_processor = TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
    )
    namer = _namer(tokenizer=tokenizer)
    for _ in range(2):
        lengths = []
        for special in (False, True):
            body = {"model": "m", "prompt": "The river runs.", "add_special_tokens": special}
            lengths.append(namer.chain(completion_prompts(body)[0]).prompt_tokens)
        assert lengths[1] == lengths[0] + 1


@pytest.mark.parametrize("tokenizer", [_TOKENIZER, None])
def test_a_next_turn_is_only_its_new_text(tokenizer: Any) -> None:
    """What is known costs nothing, and what is not costs by its length."""
    namer = _namer(tokenizer=tokenizer)
    history = [{"role": "user", "content": "Tell me about the river. " * 400}]
    first = namer.start(chat_prompt(_chat(history)))
    assert first.seconds > 0
    first.chain()
    assert namer.start(chat_prompt(_chat(history))).seconds == 0
    history += [
        {"role": "assistant", "content": "It flows. " * 4},
        {"role": "user", "content": "And the sea?"},
    ]
    assert 0 < namer.start(chat_prompt(_chat(history))).seconds < first.seconds / 20


def _plainly_named(algorithm: str, root: bytes, data: bytes, keys: Keys) -> list[bytes]:
    """Names as the definition has them, block by block."""
    names, parent = [], root
    for index in range(len(data) // 16):
        block = data[16 * index : 16 * index + 16] + keys.of_block(index, 4)
        if algorithm == "sha256":
            parent = sha256(parent + block).digest()
        else:
            parent = xxh3_64_intdigest(block, int.from_bytes(parent, "little")).to_bytes(8, "little")
        names.append(parent)
    return names


@pytest.mark.parametrize("algorithm", ["sha256", "xxh3"])
@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 9), max_size=60),
    st.lists(st.tuples(st.integers(0, 70), st.integers(0, 9)), max_size=3),
)
def test_names_are_as_defined_whichever_blocks_have_keys(
    algorithm: str, tokens: list[int], pictures: list[tuple[int, int]]
) -> None:
    images = tuple(ImageKey(b"picture", start, length) for start, length in pictures)
    keys = Keys("m", salt="s", images=images)
    namer = _namer(algorithm=algorithm, tokenizer=None)
    chain = namer.chain_of_tokens(tokens, keys)
    named = _plainly_named(algorithm, namer.root, chain.data, keys)
    assert list(chain.names) == named
    # The rest of a chain follows from any of its names.
    for depth in range(1, len(named)):
        rest = namer.name_blocks(named[depth - 1], chain.data[16 * depth :], keys.keyed_blocks(4), depth)
        assert rest == named[depth:]


@pytest.mark.parametrize("tokenizer", [_TOKENIZER, None])
def test_a_turn_extends_the_one_before(tokenizer: Any) -> None:
    namer = _namer(tokenizer=tokenizer)
    turns = [
        {"role": "system", "content": "You are a calm assistant."},
        {"role": "user", "content": "Tell me about the river."},
    ]
    first = namer.chain(chat_prompt(_chat(turns)))
    turns += [{"role": "assistant", "content": "It flows."}, {"role": "user", "content": "And the sea?"}]
    second = namer.chain(chat_prompt(_chat(turns)))
    assert first.names == second.names[: len(first.names)]
    assert len(second.names) > len(first.names) > 2


@pytest.mark.parametrize("tokenizer", [_TOKENIZER, None])
def test_the_preamble_is_what_comes_before_the_conversation(tokenizer: Any) -> None:
    namer = _namer(tokenizer=tokenizer)
    system = {"role": "system", "content": "You are a calm assistant who answers in one sentence."}
    chains = [
        namer.chain(chat_prompt(_chat([system, {"role": "user", "content": content}])))
        for content in ("alpha", "beta gamma")
    ]
    assert chains[0].preamble_tokens == chains[1].preamble_tokens > 4
    shared = sum(a == b for a, b in zip(chains[0].names, chains[1].names, strict=False))
    # All blocks within the preamble are shared, the one behind it is not.
    assert shared == chains[0].preamble_tokens // 4


def test_salts_and_models_make_other_names_of_the_same_tokens() -> None:
    namer = _namer()
    messages = [{"role": "user", "content": "Tell me about the river and the sea."}]
    chains = [
        namer.chain(chat_prompt(_chat(messages, **fields)))
        for fields in ({}, {"cache_salt": "a"}, {"cache_salt": "b"}, {"model": "other"})
    ]
    assert len({chain.data for chain in chains}) == 1
    assert len({chain.names[0] for chain in chains}) == 4
    assert namer.chain(chat_prompt(_chat(messages, cache_salt="a"))).names == chains[1].names


def test_token_ids_that_spell_a_text_are_not_taken_for_it() -> None:
    namer = _namer()
    text = "<|im_start|>abcdefgh"
    as_text = namer.chain(completion_prompts({"model": "m", "prompt": text, "add_special_tokens": False})[0])
    spelled = [int.from_bytes(text.encode()[i : i + 4], "little") for i in range(0, 20, 4)]
    as_tokens = namer.chain(completion_prompts({"model": "m", "prompt": spelled})[0])
    assert unpack_tokens(as_tokens.data) == spelled
    assert as_text.data != as_tokens.data


def test_text_and_its_tokens_have_one_chain() -> None:
    namer = _namer()
    text = "The quick brown fox jumps over the lazy dog."
    ids = _TOKENIZER.tokenizer.encode(text).ids
    by_text, by_ids = (
        namer.chain(completion_prompts({"model": "m", "prompt": prompt})[0]) for prompt in (text, ids)
    )
    assert by_text.names == by_ids.names
    assert len(by_text.names) >= 2


def test_a_template_that_refuses_is_an_error_of_its_own() -> None:
    with pytest.raises(RenderError, match="no such role"):
        _namer().chain(chat_prompt(_chat([{"role": "nobody", "content": "x"}])))


def test_tools_are_rendered_as_plain_json() -> None:
    tools = [{"type": "function", "function": {"name": "größe", "parameters": {"a": "<b>"}}}]
    prompt = chat_prompt(_chat([{"role": "user", "content": "x"}], tools=tools))
    text = "".join(_TOKENIZER.segments(prompt)[0])
    assert '"name": "größe"' in text
    assert '{"a": "<b>"}' in text
