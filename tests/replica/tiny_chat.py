"""A model directory that a replica can serve: a tiny Llama with random weights, and a tokenizer."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from safetensors.torch import save_file

from tests.replica.tiny_llama import CONFIG, tensors, write_tiny_llama
from tests.tiny_tokenizer import tiny_tokenizer, write_tiny_tokenizer


def write_tiny_chat(directory: Path) -> Path:
    """Fill `directory`. What it says is noise: bytes that are no characters, and now and then words."""
    vocabulary = tiny_tokenizer().tokenizer.get_vocab_size()
    write_tiny_llama(directory, vocab_size=vocabulary, eos_token_id=2)
    source, hidden = torch.Generator().manual_seed(7), CONFIG["hidden_size"]
    sized = {
        "model.embed_tokens.weight": torch.randn(vocabulary, hidden, generator=source),
        "lm_head.weight": torch.randn(vocabulary, hidden, generator=source) / math.sqrt(hidden),
    }
    save_file(tensors() | sized, directory / "model.safetensors")
    return write_tiny_tokenizer(directory)
