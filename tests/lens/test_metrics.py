"""Each score on patterns whose answer is known by hand, and at uniform attention."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lens.metrics import (
    SCORES,
    duplicate_token,
    entropy,
    entropy_nats,
    first_token,
    induction,
    mean_distance,
    previous_token,
    uniform_attention,
)

T = 8
P = T // 2


def looking_back(places: int) -> Tensor:
    """Every query puts everything on the key so many places back, or on the first."""
    A = torch.zeros(T, T)
    A[torch.arange(T), (torch.arange(T) - places).clamp(min=0)] = 1
    return A


SELF, PREVIOUS = looking_back(0), looking_back(1)
FIRST, COPY, INDUCTION = looking_back(T), looking_back(P), looking_back(P - 1)


@pytest.mark.parametrize(
    ("measure", "pattern", "answer"),
    [
        (entropy, SELF, 0.0),
        (entropy, uniform_attention(T), 1.0),
        (entropy_nats, SELF, 0.0),
        (previous_token, PREVIOUS, 1.0),
        (previous_token, SELF, 0.0),
        (previous_token, FIRST, 1 / (T - 1)),  # the first is the previous of the second alone
        (first_token, FIRST, 1.0),
        (first_token, SELF, 0.0),
        (first_token, PREVIOUS, 1 / (T - 1)),
        (mean_distance, SELF, 0.0),
        (mean_distance, PREVIOUS, (T - 1) / T),  # the first has nothing before it
        (mean_distance, FIRST, (T - 1) / 2),
        (induction, INDUCTION, 1.0),
        (induction, COPY, 0.0),
        (induction, PREVIOUS, 0.0),
        (duplicate_token, COPY, 1.0),
        (duplicate_token, INDUCTION, 0.0),
        (duplicate_token, FIRST, 1 / P),
    ],
)
def test_known_patterns(measure: object, pattern: Tensor, answer: float) -> None:
    assert callable(measure)
    assert float(measure(pattern)) == pytest.approx(answer, abs=1e-6)


def test_uniform_attention_by_hand() -> None:
    """Query q gives 1 / (q + 1) to each of its keys."""
    by_hand = {
        "entropy": 1.0,
        "entropy_nats": sum(math.log(q + 1) for q in range(1, T)) / (T - 1),
        "previous_token": sum(1 / (q + 1) for q in range(1, T)) / (T - 1),
        "first_token": sum(1 / (q + 1) for q in range(1, T)) / (T - 1),
        "mean_distance": sum(q / 2 for q in range(T)) / T,
        "induction": sum(1 / (q + 1) for q in range(P, 2 * P)) / P,
        "duplicate_token": sum(1 / (q + 1) for q in range(P, 2 * P)) / P,
    }
    assert {s.key for s in SCORES} == by_hand.keys()
    for score in SCORES:
        assert score.uniform(T) == pytest.approx(by_hand[score.key], abs=1e-6), score.key


def test_entropy_of_two_equal_keys() -> None:
    A = torch.tensor([[1.0, 0, 0], [0.5, 0.5, 0], [0.5, 0, 0.5]])
    assert float(entropy(A)) == pytest.approx((1 + math.log(2) / math.log(3)) / 2)


@given(st.integers(0, 2**31), st.integers(1, 3), st.integers(2, 6))
def test_scores_are_of_one_head(seed: int, heads: int, half: int) -> None:
    """What the other heads and windows do changes nothing; weights stay weights."""
    torch.manual_seed(seed)
    length = 2 * half
    hidden = torch.ones(length, length).triu(1).bool()
    A = torch.randn(2, heads, length, length).masked_fill(hidden, -math.inf).softmax(-1)
    for score in SCORES:
        of_all = score.measure(A)
        assert of_all.shape == (2, heads)
        assert torch.allclose(of_all[1, 0], score.measure(A[1, 0]), atol=1e-6)
        most = length if score.key in ("mean_distance", "entropy_nats") else 1 + 1e-6
        assert bool((of_all >= 0).all()) and bool((of_all <= most).all())
