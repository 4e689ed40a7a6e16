"""Rotary positions: the table of rotations and how heads are turned by it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from replica.model.config import LlamaConfig, RopeScaling


class Rope:
    """Cosines and sines of every position below `context_tokens`."""

    def __init__(
        self, config: LlamaConfig, context_tokens: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        angles = torch.outer(torch.arange(context_tokens, dtype=torch.float32), frequencies(config))
        self._cosines = torch.cat([angles.cos(), angles.cos()], dim=-1).to(device=device, dtype=dtype)
        # The minus of the rotated second half is kept in the table, so a turn is a roll and two products.
        self._sines = torch.cat([-angles.sin(), angles.sin()], dim=-1).to(device=device, dtype=dtype)

    def rotations(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines for `positions` [tokens], each [tokens, 1, head_size]."""
        return self._cosines[positions].unsqueeze(1), self._sines[positions].unsqueeze(1)


def turn(heads: Tensor, rotations: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate `heads` [tokens, any heads, head_size] to their positions."""
    cosines, sines = rotations
    return torch.addcmul(heads * cosines, heads.roll(heads.shape[-1] // 2, dims=-1), sines)


def frequencies(config: LlamaConfig) -> Tensor:
    """Radians per position of each pair of a head, [head_size / 2], stretched as the config says."""
    exponents = torch.arange(0, config.head_size, 2, dtype=torch.float32) / config.head_size
    plain = 1.0 / config.rope_theta**exponents
    scaling = config.rope_scaling
    if scaling is None:
        return plain
    if scaling.kind == "linear":
        return plain / scaling.factor
    return _by_wavelength(plain, scaling)


def _by_wavelength(plain: Tensor, scaling: RopeScaling) -> Tensor:
    """Llama 3: short waves stay, long ones stretch by the factor, those between are blended."""
    waves = scaling.original_context_tokens * plain / (2 * math.pi)
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    kept = ((waves - low) / (high - low)).clamp(0.0, 1.0)
    return kept * plain + (1 - kept) * plain / scaling.factor
