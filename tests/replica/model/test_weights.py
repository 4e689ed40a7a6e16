"""Loading safetensors: one file or shards, tied or not, and files that do not fit the config."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from replica.batch import Batch, Sampling, Work
from replica.model.config import UnsupportedModel
from replica.runner.torch_options import TorchOptions
from replica.runner.torch_runner import TorchRunner
from tests.replica.dense import DenseLlama
from tests.replica.tiny_llama import tensors, write_tiny_llama

OPTIONS = TorchOptions(dtype="fp32", block_count=4)


def logits(directory: Path) -> torch.Tensor:
    return TorchRunner(directory, OPTIONS).logits(Batch((Work(1, [9, 8, 7], 0, (0,), True, Sampling()),)))


def test_shards_load_as_one_file_does(tmp_path: Path) -> None:
    whole = write_tiny_llama(tmp_path / "whole")
    sharded = write_tiny_llama(tmp_path / "sharded")
    (sharded / "model.safetensors").unlink()
    named = tensors()
    names = sorted(named)
    shards = {"model-1.safetensors": names[:7], "model-2.safetensors": names[7:]}
    for file, members in shards.items():
        save_file({name: named[name] for name in members}, sharded / file)
    where = {name: file for file, members in shards.items() for name in members}
    (sharded / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    assert torch.equal(logits(sharded), logits(whole))


def test_a_tied_head_is_the_embedding(tmp_path: Path) -> None:
    directory = write_tiny_llama(tmp_path, tie_word_embeddings=True)
    expected = DenseLlama(directory).logits([9, 8, 7])[-1]
    torch.testing.assert_close(logits(directory)[0], expected, atol=2e-4, rtol=0)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    directory = write_tiny_llama(tmp_path, num_hidden_layers=3)
    with pytest.raises(UnsupportedModel, match=r"model\.layers\.2"):
        logits(directory)


def test_a_wrong_shape_is_named(tmp_path: Path) -> None:
    directory = write_tiny_llama(tmp_path, intermediate_size=49)
    with pytest.raises(UnsupportedModel, match=r"gate_proj.*\(48, 32\).*\(49, 32\)"):
        logits(directory)


def test_a_directory_without_weights_is_refused(tmp_path: Path) -> None:
    directory = write_tiny_llama(tmp_path)
    (directory / "model.safetensors").unlink()
    with pytest.raises(UnsupportedModel, match=r"no model\.safetensors"):
        logits(directory)
