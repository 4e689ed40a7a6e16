"""Converting GGUF weights: names, row order, and a model that computes the same afterwards."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from gguf import GGUFReader, GGUFWriter
from safetensors.torch import load_file

from replica.model.gguf_tokenizer import UnsupportedGguf
from replica.model.gguf_weights import write_weights
from tests.replica.tiny_llama import CONFIG, tensors

GGUF_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    if name in GGUF_NAMES:
        return GGUF_NAMES[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{GGUF_NAMES[rest.removesuffix('.weight')]}.weight"


def interleaved(rows: npt.NDArray[np.float32], size: int) -> npt.NDArray[np.float32]:
    """GGUF's order: in a head of `size` rows, row i of its first half stands before row i of its second."""
    order = [
        head + place
        for head in range(0, len(rows), size)
        for i in range(size // 2)
        for place in (i, i + size // 2)
    ]
    return rows[order]


def write_gguf(path: Path, *, architecture: str = "llama", extra: str | None = None) -> GGUFReader:
    writer = GGUFWriter(path, architecture)
    writer.add_block_count(CONFIG["num_hidden_layers"])
    writer.add_context_length(CONFIG["max_position_embeddings"])
    writer.add_embedding_length(CONFIG["hidden_size"])
    writer.add_feed_forward_length(CONFIG["intermediate_size"])
    writer.add_head_count(CONFIG["num_attention_heads"])
    writer.add_head_count_kv(CONFIG["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(CONFIG["rms_norm_eps"])
    writer.add_rope_freq_base(CONFIG["rope_theta"])
    writer.add_rope_dimension_count(CONFIG["head_dim"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_token_list([str(token) for token in range(CONFIG["vocab_size"])])
    for name, tensor in tensors().items():
        values = tensor.numpy()
        if "q_proj" in name or "k_proj" in name:
            values = interleaved(values, CONFIG["head_dim"])
        writer.add_tensor(gguf_name(name), values)
    if extra is not None:
        writer.add_tensor(extra, np.zeros((2, 2), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GGUFReader(path)


def test_every_weight_comes_back_in_its_own_row_order(tmp_path: Path) -> None:
    write_weights(write_gguf(tmp_path / "tiny.gguf"), tmp_path)
    converted = load_file(tmp_path / "model.safetensors")
    expected = {name: tensor.bfloat16() for name, tensor in tensors().items()}
    assert converted.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(converted[name], tensor), name


def test_the_config_says_what_the_file_said(tmp_path: Path) -> None:
    write_weights(write_gguf(tmp_path / "tiny.gguf"), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert {key: config[key] for key in CONFIG} == CONFIG
    assert (config["bos_token_id"], config["eos_token_id"]) == (1, 2)


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedGguf, match="llama architecture"):
        write_weights(write_gguf(tmp_path / "tiny.gguf", architecture="qwen2"), tmp_path)


@pytest.mark.parametrize("name", ["blk.0.attn_q_norm.weight", "rope_freqs.weight", "blk.0.attn_q.bias"])
def test_a_tensor_without_a_place_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnsupportedGguf, match=name):
        write_weights(write_gguf(tmp_path / "tiny.gguf", extra=name), tmp_path)
