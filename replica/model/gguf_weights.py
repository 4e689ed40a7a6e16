"""Converts a Llama GGUF file to config.json and bf16 safetensors under Hugging Face's names."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGUFReader, dequantize
from safetensors.torch import save_file

from replica.model.gguf_tokenizer import UnsupportedGguf, metadata

_WHOLE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def write_weights(reader: GGUFReader, directory: Path) -> None:
    """Write config.json and model.safetensors (bf16) into `directory`."""
    if metadata(reader, "general.architecture") != "llama":
        raise UnsupportedGguf("only GGUF files of the llama architecture can be converted")
    heads = int(metadata(reader, "llama.attention.head_count"))
    kv_heads = int(metadata(reader, "llama.attention.head_count_kv"))
    tensors: dict[str, torch.Tensor] = {}
    for entry in reader.tensors:
        name = _hugging_face_name(entry.name)
        values: npt.NDArray[np.float32] = dequantize(entry.data, entry.tensor_type)
        if name.endswith("q_proj.weight"):
            values = unpermute(values, heads)
        elif name.endswith("k_proj.weight"):
            values = unpermute(values, kv_heads)
        tensors[name] = torch.from_numpy(np.array(values)).to(torch.bfloat16)
    target = directory / "model.safetensors"
    save_file(tensors, target, metadata={"format": "pt"})
    target.chmod(0o644)
    config = _config(reader, tied="lm_head.weight" not in tensors)
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def unpermute(rows: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Undo llama.cpp's order of the query and key rows.

    `rows` is [heads * head_size, in]. GGUF interleaves the two halves that rotate together; Hugging Face's
    rotation wants the first half of a head and then the second.
    """
    pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, rows.shape[1])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def _hugging_face_name(name: str) -> str:
    if name in _WHOLE:
        return _WHOLE[name]
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name)
    if match is None or match[2] not in _IN_LAYER:
        raise UnsupportedGguf(f"the tensor {name!r} has no place in a Llama decoder")
    return f"model.layers.{match[1]}.{_IN_LAYER[match[2]]}.weight"


def _config(reader: GGUFReader, *, tied: bool) -> dict[str, object]:
    heads = int(metadata(reader, "llama.attention.head_count"))
    hidden = int(metadata(reader, "llama.embedding_length"))
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "bos_token_id": int(metadata(reader, "tokenizer.ggml.bos_token_id")),
        "eos_token_id": int(metadata(reader, "tokenizer.ggml.eos_token_id")),
        "head_dim": int(metadata(reader, "llama.rope.dimension_count", hidden // heads)),
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": int(metadata(reader, "llama.feed_forward_length")),
        "max_position_embeddings": int(metadata(reader, "llama.context_length")),
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": heads,
        "num_hidden_layers": int(metadata(reader, "llama.block_count")),
        "num_key_value_heads": int(metadata(reader, "llama.attention.head_count_kv")),
        # GGUF keeps 32-bit floats: seven digits give back the number that was meant.
        "rms_norm_eps": float(f"{metadata(reader, 'llama.attention.layer_norm_rms_epsilon'):.7g}"),
        "rope_scaling": None,
        "rope_theta": float(metadata(reader, "llama.rope.freq_base", 10000.0)),
        "tie_word_embeddings": tied,
        "torch_dtype": "bfloat16",
        "vocab_size": len(metadata(reader, "tokenizer.ggml.tokens")),
    }
