"""Writes the tokenizer files of a model directory from the metadata of a GGUF file, without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gguf import GGUFReader
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

_CONTROL_TOKEN = 3
"""GGUF's token type of a control token, such as the marks around a chat message."""


class UnsupportedGguf(ValueError):
    """The GGUF file holds something that this converter would get wrong."""


def metadata(reader: GGUFReader, key: str, default: Any = None) -> Any:
    """The value under `key` in the file's metadata, or `default`; without one a missing key is an error."""
    field = reader.get_field(key)
    if field is not None:
        return field.contents()
    if default is None:
        raise UnsupportedGguf(f"the GGUF file has no {key!r} in its metadata")
    return default


def write_tokenizer(gguf: GGUFReader | Path, directory: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja into `directory`."""
    reader = gguf if isinstance(gguf, GGUFReader) else GGUFReader(gguf)
    tokens: list[str] = metadata(reader, "tokenizer.ggml.tokens")
    tokenizer = _tokenizer(reader, tokens)
    (directory / "tokenizer.json").write_text(tokenizer.to_str(pretty=False), encoding="utf-8")
    template = str(metadata(reader, "tokenizer.chat_template"))
    (directory / "chat_template.jinja").write_text(template, encoding="utf-8")
    settings = {
        "add_bos_token": bool(metadata(reader, "tokenizer.ggml.add_bos_token", False)),
        "add_prefix_space": False,
        "bos_token": tokens[metadata(reader, "tokenizer.ggml.bos_token_id")],
        "clean_up_tokenization_spaces": False,
        "eos_token": tokens[metadata(reader, "tokenizer.ggml.eos_token_id")],
        "model_max_length": metadata(reader, "llama.context_length"),
        "pad_token": tokens[metadata(reader, "tokenizer.ggml.padding_token_id")],
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": tokens[metadata(reader, "tokenizer.ggml.unknown_token_id")],
    }
    text = json.dumps(settings, indent=2, sort_keys=True) + "\n"
    (directory / "tokenizer_config.json").write_text(text, encoding="utf-8")


def _tokenizer(reader: GGUFReader, tokens: list[str]) -> Tokenizer:
    kind = (metadata(reader, "tokenizer.ggml.model"), metadata(reader, "tokenizer.ggml.pre"))
    if kind != ("gpt2", "smollm"):
        raise UnsupportedGguf(
            f"only byte-level BPE with the 'smollm' pre-tokenizer is known here, not {kind}"
        )
    if metadata(reader, "tokenizer.ggml.add_bos_token", False):
        raise UnsupportedGguf("a tokenizer that puts a token before every text is not known here")
    merges = [tuple(merge.split(" ")) for merge in metadata(reader, "tokenizer.ggml.merges")]
    # No unknown token: this vocabulary lacks 21 of the 256 bytes, and both the published tokenizer and
    # llama.cpp drop such a byte silently. An unknown token here would name other blocks than theirs.
    model = models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges, unk_token=None)
    tokenizer = Tokenizer(model)
    # Every numeric character stands alone (" 42" is a space, a 4 and a 2), the rest is split as by GPT-2.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    types: list[int] = metadata(reader, "tokenizer.ggml.token_type")
    controls = [token for token, kind in zip(tokens, types, strict=True) if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in controls])
    return tokenizer
