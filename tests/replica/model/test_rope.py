"""Rotary positions against their definition, plain and stretched."""

from __future__ import annotations

import cmath
import math
from dataclasses import replace

import pytest
import torch

from replica.model.config import LlamaConfig, RopeScaling, read_config
from replica.model.rope import Rope, frequencies, turn
from tests.replica.tiny_llama import write_tiny_llama


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> LlamaConfig:
    return read_config(write_tiny_llama(tmp_path_factory.mktemp("tiny")))


def test_a_pair_turns_as_a_complex_number(config: LlamaConfig) -> None:
    rope = Rope(config, 256, torch.float32, torch.device("cpu"))
    heads = torch.randn(3, 2, 8, generator=torch.Generator().manual_seed(0))
    positions = [0, 5, 200]
    turned = turn(heads, rope.rotations(torch.tensor(positions)))
    for row, position in enumerate(positions):
        for head in range(2):
            for pair in range(4):
                number = complex(heads[row, head, pair], heads[row, head, pair + 4])
                number *= cmath.exp(1j * position * 10000.0 ** (-pair / 4))
                assert float(turned[row, head, pair]) == pytest.approx(number.real, abs=1e-4)
                assert float(turned[row, head, pair + 4]) == pytest.approx(number.imag, abs=1e-4)


def test_linear_scaling_divides_every_frequency(config: LlamaConfig) -> None:
    scaled = frequencies(replace(config, rope_scaling=RopeScaling("linear", 4.0)))
    assert torch.equal(scaled, frequencies(config) / 4)


def test_llama3_scaling_keeps_short_waves_and_stretches_long_ones(config: LlamaConfig) -> None:
    config = replace(config, head_size=64, rope_theta=500000.0)
    scaling = RopeScaling("llama3", 8.0, 1.0, 4.0, 8192)
    plain, scaled = frequencies(config), frequencies(replace(config, rope_scaling=scaling))
    for before, after in zip(plain.tolist(), scaled.tolist(), strict=True):
        turns = 8192 * before / (2 * math.pi)
        if turns >= 4:
            assert after == pytest.approx(before)
        elif turns <= 1:
            assert after == pytest.approx(before / 8)
        else:
            assert before / 8 < after < before
