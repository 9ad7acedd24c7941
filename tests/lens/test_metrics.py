"""Attention scores, also of uniform attention, against their definitions in plain loops."""

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lens.metrics import SCORES


def by_hand(A: Sequence[Sequence[float]]) -> dict[str, float]:
    T = len(A)
    P, later = T // 2, range(1, T)
    nats = [-sum(a * math.log(a) for a in row if a) for row in A]
    distances = sum(A[q][k] * (q - k) for q in range(T) for k in range(T))
    return {
        "entropy": sum(nats[q] / math.log(q + 1) for q in later) / (T - 1),
        "previous_token": sum(A[q][q - 1] for q in later) / (T - 1),
        "own_position": sum(A[q][q] for q in later) / (T - 1),
        "first_token": sum(A[q][0] for q in later) / (T - 1),
        "mean_distance": distances / sum(map(sum, A)),
        "induction": sum(A[q][q - P + 1] for q in range(P, 2 * P)) / P,
        "duplicate_token": sum(A[q][q - P] for q in range(P, 2 * P)) / P,
    }


@given(st.integers(0, 2**31), st.integers(2, 6), st.floats(0.1, 20), st.booleans())
def test_scores_match_their_definitions(seed: int, half: int, sharpness: float, mask: bool) -> None:
    T = 2 * half
    scores = sharpness * torch.randn(3, 2, T, T, generator=torch.Generator().manual_seed(seed))
    later = torch.ones(T, T).triu(1).bool() & mask
    A = scores.double().masked_fill(later, -math.inf).softmax(-1)
    uniform = by_hand([[1 / (q + 1)] * (q + 1) + [0.0] * (T - q - 1) for q in range(T)])
    expected = [[by_hand(head) for head in heads] for heads in A.tolist()]
    assert {score.key for score in SCORES} == uniform.keys()
    for score in SCORES:
        assert score.uniform(T) == pytest.approx(uniform[score.key], abs=1e-6), score.key
        assert score.formula and score.source[-4:].isdigit()
        found = score.measure(A).tolist()
        for row, numbers in zip(found, expected, strict=True):
            assert row == pytest.approx([n[score.key] for n in numbers], abs=1e-6), score.key
