"""Weights packed for the page."""

import pytest
import torch

from page.weights import pack_weights


@pytest.mark.parametrize("eight_bits", [False, True])
def test_weight_rounding_error_is_at_most_half_a_step(eight_bits: bool) -> None:
    matrix = torch.randn(5, 7, generator=torch.Generator().manual_seed(0)) * 3
    matrix[3] = 0.0
    packed, rounded = pack_weights({"matrix": matrix, "vector": matrix[0]}, eight_bits)
    assert torch.equal(rounded["vector"], matrix[0].half().float())
    half_a_step = matrix.abs().amax(1, keepdim=True) / 254 * 1.0001
    allowed = half_a_step if eight_bits else matrix.abs() * 2.0**-11
    assert ((rounded["matrix"] - matrix).abs() <= allowed).all()
    # The four nonzero rows, the vector, and one byte of row bits for each tensor.
    assert len(packed) == (4 * (4 + 7) if eight_bits else 4 * 7 * 2) + 2 * 7 + 2
