"""The shape of a Llama decoder, read from a model directory's config.json."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class UnsupportedModel(ValueError):
    """The model directory holds something this decoder would compute wrongly."""


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotation frequencies are stretched for long contexts: 'linear', or Llama 3's by wavelength."""

    kind: str
    factor: float
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    original_context_tokens: int = 8192


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """Sizes of a Llama decoder; `head_size` counts the numbers of one attention head."""

    vocabulary: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    context_tokens: int
    norm_epsilon: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    tied_head: bool

    @property
    def groups(self) -> int:
        """Query heads that share one key/value head."""
        return self.heads // self.kv_heads


def read_config(directory: Path) -> LlamaConfig:
    """Read `directory`/config.json; raises UnsupportedModel where this decoder would be wrong."""
    path = directory / "config.json"
    try:
        raw: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UnsupportedModel(f"{directory} is no model directory: it has no config.json") from error
    except ValueError as error:
        raise UnsupportedModel(f"{path} is not JSON: {error}") from error
    try:
        _refuse_other_architectures(raw)
        config = _parse(raw)
    except KeyError as error:
        raise UnsupportedModel(f"{path} lacks {error}") from error
    if config.heads % config.kv_heads or config.head_size % 2:
        raise UnsupportedModel(f"{path}: heads must be a multiple of key/value heads, and their size even")
    return config


def _refuse_other_architectures(raw: dict[str, Any]) -> None:
    if "LlamaForCausalLM" not in raw.get("architectures", []):
        raise UnsupportedModel(f"only LlamaForCausalLM is supported, not {raw.get('architectures')}")
    if raw.get("hidden_act", "silu") != "silu":
        raise UnsupportedModel(f"only the silu activation is supported, not {raw['hidden_act']!r}")
    for key in ("attention_bias", "mlp_bias", "quantization_config"):
        if raw.get(key):
            raise UnsupportedModel(f"{key} is not supported")


def _parse(raw: dict[str, Any]) -> LlamaConfig:
    heads = int(raw["num_attention_heads"])
    hidden = int(raw["hidden_size"])
    # Newer files keep theta and scaling together in rope_parameters, older ones apart.
    rope: dict[str, Any] = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    return LlamaConfig(
        vocabulary=int(raw["vocab_size"]),
        hidden=hidden,
        intermediate=int(raw["intermediate_size"]),
        layers=int(raw["num_hidden_layers"]),
        heads=heads,
        kv_heads=int(raw.get("num_key_value_heads") or heads),
        head_size=int(raw.get("head_dim") or hidden // heads),
        context_tokens=int(raw["max_position_embeddings"]),
        norm_epsilon=float(raw.get("rms_norm_eps", 1e-6)),
        rope_theta=float(rope.get("rope_theta") or raw.get("rope_theta") or 10000.0),
        rope_scaling=_rope_scaling(rope),
        tied_head=bool(raw.get("tie_word_embeddings", False)),
    )


def _rope_scaling(rope: dict[str, Any]) -> RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind == "linear":
        return RopeScaling(kind, float(rope["factor"]))
    if kind == "llama3":
        return RopeScaling(
            kind,
            float(rope["factor"]),
            float(rope["low_freq_factor"]),
            float(rope["high_freq_factor"]),
            int(rope["original_max_position_embeddings"]),
        )
    raise UnsupportedModel(f"rope scaling {kind!r} is not supported")
