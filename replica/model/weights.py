"""Loads the weights of a Llama decoder from safetensors, checked against its config and fused for speed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from replica.model.config import LlamaConfig, UnsupportedModel
from replica.model.matrix import Matrix, prepare


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer. Matrices are [out, in]; query, key and value rows are fused, gate and up too."""

    attention_norm: Tensor
    query_key_value: Matrix
    output: Matrix
    mlp_norm: Tensor
    gate_up: Matrix
    down: Matrix


@dataclass(frozen=True, slots=True)
class LlamaWeights:
    """The whole decoder; `head` is the embedding again where the two are tied."""

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    head: Matrix


class _Files:
    """The safetensors files of a directory, as one mapping from name to tensor."""

    def __init__(self, directory: Path, stack: ExitStack, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype = dtype
        self._device = device
        self._where: dict[str, Any] = {}
        for path in _shards(directory):
            file = stack.enter_context(safe_open(path, framework="pt"))
            self._where.update(dict.fromkeys(file.keys(), file))

    def take(self, name: str, *shape: int) -> Tensor:
        if name not in self._where:
            raise UnsupportedModel(f"the weights lack {name!r}")
        tensor: Tensor = self._where[name].get_tensor(name)
        if tuple(tensor.shape) != shape:
            raise UnsupportedModel(f"{name!r} has shape {tuple(tensor.shape)}, and the config wants {shape}")
        return tensor.to(device=self._device, dtype=self._dtype)

    def matrix(self, rows: Sequence[tuple[str, int]], columns: int) -> Matrix:
        return prepare(torch.cat([self.take(name, count, columns) for name, count in rows]))


def load_weights(
    directory: Path, config: LlamaConfig, dtype: torch.dtype, device: torch.device
) -> LlamaWeights:
    """Load every weight as `dtype` on `device`; raises UnsupportedModel where files and config disagree."""
    with ExitStack() as stack:
        files = _Files(directory, stack, dtype, device)
        embedding = files.take("model.embed_tokens.weight", config.vocabulary, config.hidden)
        head = (
            embedding if config.tied_head else files.take("lm_head.weight", config.vocabulary, config.hidden)
        )
        return LlamaWeights(
            embedding=embedding,
            layers=tuple(_layer(files, config, f"model.layers.{layer}") for layer in range(config.layers)),
            norm=files.take("model.norm.weight", config.hidden),
            head=prepare(head),
        )


def _layer(files: _Files, config: LlamaConfig, prefix: str) -> LayerWeights:
    queries = config.heads * config.head_size
    keys = config.kv_heads * config.head_size
    attention = f"{prefix}.self_attn"
    return LayerWeights(
        attention_norm=files.take(f"{prefix}.input_layernorm.weight", config.hidden),
        query_key_value=files.matrix(
            [
                (f"{attention}.q_proj.weight", queries),
                (f"{attention}.k_proj.weight", keys),
                (f"{attention}.v_proj.weight", keys),
            ],
            config.hidden,
        ),
        output=files.matrix([(f"{attention}.o_proj.weight", config.hidden)], queries),
        mlp_norm=files.take(f"{prefix}.post_attention_layernorm.weight", config.hidden),
        gate_up=files.matrix(
            [
                (f"{prefix}.mlp.gate_proj.weight", config.intermediate),
                (f"{prefix}.mlp.up_proj.weight", config.intermediate),
            ],
            config.hidden,
        ),
        down=files.matrix([(f"{prefix}.mlp.down_proj.weight", config.hidden)], config.intermediate),
    )


def _shards(directory: Path) -> list[Path]:
    single = directory / "model.safetensors"
    if single.is_file():
        return [single]
    index = directory / "model.safetensors.index.json"
    if not index.is_file():
        raise UnsupportedModel(f"{directory} has no model.safetensors")
    names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    return [directory / name for name in names]
