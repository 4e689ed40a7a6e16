"""Reading config.json: what is understood, and what is refused rather than computed wrongly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from replica.model.config import RopeScaling, UnsupportedModel, read_config
from tests.replica.tiny_llama import CONFIG


def write(directory: Path, **changes: object) -> Path:
    merged = CONFIG | changes
    (directory / "config.json").write_text(json.dumps({k: v for k, v in merged.items() if v != "absent"}))
    return directory


def test_sizes_are_read(tmp_path: Path) -> None:
    config = read_config(write(tmp_path))
    assert (config.heads, config.kv_heads, config.groups, config.head_size) == (6, 2, 3, 8)
    assert (config.vocabulary, config.hidden, config.layers, config.context_tokens) == (61, 32, 2, 256)
    assert config.rope_scaling is None
    assert not config.tied_head


def test_sizes_left_out_follow_from_the_others(tmp_path: Path) -> None:
    config = read_config(
        write(tmp_path, num_key_value_heads="absent", head_dim="absent", num_attention_heads=4)
    )
    assert (config.kv_heads, config.head_size) == (4, 8)


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"rope_scaling": {"type": "linear", "factor": 2}}, RopeScaling("linear", 2.0)),
        ({"rope_scaling": LLAMA3}, RopeScaling("llama3", 32.0, 1.0, 4.0, 8192)),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}, "rope_theta": "absent"}, None),
    ],
)
def test_rope_scaling_is_read(
    tmp_path: Path, changes: dict[str, object], expected: RopeScaling | None
) -> None:
    assert read_config(write(tmp_path, **changes)).rope_scaling == expected


def test_theta_is_found_in_rope_parameters(tmp_path: Path) -> None:
    parameters = {"rope_type": "default", "rope_theta": 5e5}
    assert read_config(write(tmp_path, rope_parameters=parameters, rope_theta="absent")).rope_theta == 5e5


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"architectures": ["MistralForCausalLM"]}, "MistralForCausalLM"),
        ({"architectures": "absent"}, "LlamaForCausalLM"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4}}, "yarn"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
        ({"hidden_size": "absent"}, "hidden_size"),
        ({"num_key_value_heads": 4}, "multiple"),
        ({"head_dim": 7}, "even"),
    ],
)
def test_what_would_be_computed_wrongly_is_refused(
    tmp_path: Path, changes: dict[str, object], said: str
) -> None:
    with pytest.raises(UnsupportedModel, match=said):
        read_config(write(tmp_path, **changes))


def test_a_directory_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"no config\.json"):
        read_config(tmp_path)


def test_a_config_that_is_not_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UnsupportedModel, match="not JSON"):
        read_config(tmp_path)
