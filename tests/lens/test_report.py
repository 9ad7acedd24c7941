"""What the report page is given: weights rounded, and moments of training chosen."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lens.report.data import thinned
from lens.report.weights import pack_weights

WEIGHTS = {
    "matrix": torch.randn(5, 7, generator=torch.Generator().manual_seed(0)) * 3,
    "vector": torch.randn(6, generator=torch.Generator().manual_seed(1)),
}
WEIGHTS["matrix"][3] = 0.0


@pytest.mark.parametrize("eight_bits", [False, True])
def test_weights_are_rounded_by_as_little_as_their_bits_allow(eight_bits: bool) -> None:
    packed, rounded = pack_weights(WEIGHTS, eight_bits)
    matrix, vector = WEIGHTS["matrix"], WEIGHTS["vector"]
    assert torch.equal(rounded["vector"], vector.half().float())
    half_a_step = matrix.abs().amax(1, keepdim=True) / 254 * 1.0001
    allowed = half_a_step if eight_bits else matrix.abs() * 2.0**-11
    assert ((rounded["matrix"] - matrix).abs() <= allowed).all()
    assert not rounded["matrix"][3].any()
    size = 4 * (4 + 7) if eight_bits else 4 * 7 * 2  # of the four rows that are there
    assert len(packed) == 1 + size + 1 + 2 * 6


def test_moments_where_the_loss_moves_are_kept() -> None:
    losses = [4.0, 4.0, 4.0, 3.0, 2.0, 1.0, 1.0, 1.0, 1.0]
    assert thinned(losses, 5) == [0, 3, 4, 5, 8]
    assert 4 in thinned(losses, 3)


@given(st.lists(st.floats(0, 9), min_size=1, max_size=12), st.integers(1, 12))
def test_first_and_last_stay(losses: list[float], count: int) -> None:
    kept = thinned(losses, count)
    assert kept == sorted({*kept}) and len(kept) == min(count, len(losses))
    assert kept[-1] == len(losses) - 1 and (count < 2 or kept[0] == 0)
    assert np.isin(kept, range(len(losses))).all()
