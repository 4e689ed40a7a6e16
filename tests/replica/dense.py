"""An independent Llama forward, unpaged and over whole sequences, to hold the paged one against."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor


class DenseLlama:
    """Reads a model directory by itself and computes in float32, step by step as the architecture says."""

    def __init__(self, directory: Path) -> None:
        self._config: dict[str, Any] = json.loads((directory / "config.json").read_text())
        loaded = load_file(directory / "model.safetensors")
        self._weights = {name: tensor.float() for name, tensor in loaded.items()}

    @torch.no_grad()
    def logits(self, token_ids: Sequence[int]) -> Tensor:
        """Logits after each token, [tokens, vocabulary]."""
        hidden = self._weights["model.embed_tokens.weight"][list(token_ids)]
        for number in range(self._config["num_hidden_layers"]):
            layer = f"model.layers.{number}"
            hidden = hidden + self._attention(layer, self._norm(hidden, f"{layer}.input_layernorm"))
            hidden = hidden + self._mlp(layer, self._norm(hidden, f"{layer}.post_attention_layernorm"))
        tied = self._config["tie_word_embeddings"]
        head = self._weights["model.embed_tokens.weight" if tied else "lm_head.weight"]
        return self._norm(hidden, "model.norm") @ head.T

    def greedy(self, token_ids: Sequence[int], count: int) -> list[int]:
        """The `count` most likely next tokens, one after the other, each from the whole sequence anew."""
        sequence = list(token_ids)
        for _ in range(count):
            sequence.append(int(self.logits(sequence)[-1].argmax()))
        return sequence[len(token_ids) :]

    def _norm(self, hidden: Tensor, name: str) -> Tensor:
        variance = hidden.pow(2).mean(-1, keepdim=True)
        return hidden / torch.sqrt(variance + self._config["rms_norm_eps"]) * self._weights[f"{name}.weight"]

    def _attention(self, layer: str, hidden: Tensor) -> Tensor:
        heads, kv_heads = self._config["num_attention_heads"], self._config["num_key_value_heads"]
        queries = self._rotate(self._heads(f"{layer}.self_attn.q_proj", hidden, heads))
        keys = self._rotate(self._heads(f"{layer}.self_attn.k_proj", hidden, kv_heads))
        values = self._heads(f"{layer}.self_attn.v_proj", hidden, kv_heads)
        tokens = hidden.shape[0]
        future = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
        attended = []
        for head in range(heads):
            shared = head // (heads // kv_heads)
            scores = queries[head] @ keys[shared].T / self._config["head_dim"] ** 0.5
            attended.append(scores.masked_fill(future, float("-inf")).softmax(-1) @ values[shared])
        return torch.cat(attended, dim=-1) @ self._weights[f"{layer}.self_attn.o_proj.weight"].T

    def _heads(self, name: str, hidden: Tensor, count: int) -> Tensor:
        projected = hidden @ self._weights[f"{name}.weight"].T
        return projected.view(hidden.shape[0], count, self._config["head_dim"]).transpose(0, 1)

    def _rotate(self, heads: Tensor) -> Tensor:
        size = self._config["head_dim"]
        half = size // 2
        rates = torch.tensor([self._config["rope_theta"] ** (-2 * i / size) for i in range(half)])
        angles = torch.arange(heads.shape[1])[:, None] * rates
        first, second = heads[..., :half], heads[..., half:]
        return torch.cat(
            [first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()],
            dim=-1,
        )

    def _mlp(self, layer: str, hidden: Tensor) -> Tensor:
        gate = hidden @ self._weights[f"{layer}.mlp.gate_proj.weight"].T
        up = hidden @ self._weights[f"{layer}.mlp.up_proj.weight"].T
        return (gate * gate.sigmoid() * up) @ self._weights[f"{layer}.mlp.down_proj.weight"].T
