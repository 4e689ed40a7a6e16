"""The packed form of a weight computes what the plain one does."""

from __future__ import annotations

import pytest
import torch

from replica.model.matrix import PackedMatrix, PlainMatrix, packing_is_supported, prepare


@pytest.mark.skipif(not packing_is_supported(), reason="this CPU has no bf16 kernels")
@pytest.mark.parametrize("rows", [1, 2, 16, 100])
def test_a_packed_matrix_equals_the_plain_one(rows: int) -> None:
    source = torch.Generator().manual_seed(rows)
    weight = torch.randn(96, 64, generator=source).bfloat16()
    vectors = torch.randn(rows, 64, generator=source).bfloat16()
    matrix = prepare(weight)
    assert isinstance(matrix, PackedMatrix)
    torch.testing.assert_close(matrix(vectors), PlainMatrix(weight)(vectors), atol=0.1, rtol=0.02)


def test_a_float32_weight_stays_plain() -> None:
    weight = torch.eye(3)
    matrix = prepare(weight)
    assert isinstance(matrix, PlainMatrix)
    assert torch.equal(matrix(2 * weight), 2 * weight)
