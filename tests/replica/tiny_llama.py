"""Writes model directories of a tiny Llama with random weights, for tests that need exactness, not sense."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "head_dim": 8,
    "hidden_act": "silu",
    "hidden_size": 32,
    "intermediate_size": 48,
    "max_position_embeddings": 256,
    "num_attention_heads": 6,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "vocab_size": 61,
}


def tensors(seed: int = 0) -> dict[str, torch.Tensor]:
    """Random float32 weights that fit CONFIG, under Hugging Face's names."""
    source = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=source) / math.sqrt(columns)

    hidden, middle = CONFIG["hidden_size"], CONFIG["intermediate_size"]
    queries = CONFIG["num_attention_heads"] * CONFIG["head_dim"]
    keys = CONFIG["num_key_value_heads"] * CONFIG["head_dim"]
    named = {
        "model.embed_tokens.weight": matrix(CONFIG["vocab_size"], hidden) * math.sqrt(hidden),
        "model.norm.weight": 1 + 0.1 * matrix(1, hidden)[0],
        "lm_head.weight": matrix(CONFIG["vocab_size"], hidden),
    }
    for number in range(CONFIG["num_hidden_layers"]):
        layer = f"model.layers.{number}"
        named |= {
            f"{layer}.input_layernorm.weight": 1 + 0.1 * matrix(1, hidden)[0],
            f"{layer}.post_attention_layernorm.weight": 1 + 0.1 * matrix(1, hidden)[0],
            # Sharp attention: a wrong mask or position then shows in the logits at once.
            f"{layer}.self_attn.q_proj.weight": 3 * matrix(queries, hidden),
            f"{layer}.self_attn.k_proj.weight": matrix(keys, hidden),
            f"{layer}.self_attn.v_proj.weight": matrix(keys, hidden),
            f"{layer}.self_attn.o_proj.weight": matrix(hidden, queries),
            f"{layer}.mlp.gate_proj.weight": matrix(middle, hidden),
            f"{layer}.mlp.up_proj.weight": matrix(middle, hidden),
            f"{layer}.mlp.down_proj.weight": matrix(hidden, middle),
        }
    return named


def write_tiny_llama(directory: Path, seed: int = 0, **config: object) -> Path:
    """Fill `directory` with config.json and model.safetensors; `config` overrides CONFIG in the file."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(CONFIG | config))
    save_file(tensors(seed), directory / "model.safetensors")
    return directory
