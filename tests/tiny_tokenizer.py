"""A small ChatML tokenizer, trained in the test on a few sentences: byte-level, so that any text encodes."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from router.chain.tokenizer import ModelTokenizer

CHATML = (
    "{% for message in messages %}"
    "{% if loop.first and message['role'] != 'system' %}<|im_start|>system\nYou help.<|im_end|>\n{% endif %}"
    "{% if message['role'] == 'nobody' %}{{ raise_exception('no such role') }}{% endif %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if tools %}<|im_start|>tools\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_TEXTS = (
    "The quick brown fox jumps over the lazy dog while the system prompt stays the same for every user.",
    "A conversation finds its cache by its prefix alone, and every turn costs its new message only.",
    "Please tell me about the weather, the river, the mountain and the sea in three short sentences.",
)


@cache
def tiny_tokenizer_json() -> str:
    """Train it once a process; training is deterministic."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TEXTS, trainer)
    return str(tokenizer.to_str())


def tiny_tokenizer() -> ModelTokenizer:
    """Return it as the router uses it."""
    return ModelTokenizer(tiny_tokenizer_json(), CHATML, {"eos_token": "<|im_end|>"})


def write_tiny_tokenizer(directory: Path) -> Path:
    """Write it as a model directory without weights."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tokenizer.json").write_text(tiny_tokenizer_json())
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    (directory / "chat_template.jinja").write_text(CHATML)
    return directory
