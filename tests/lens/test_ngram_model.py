"""N-grams that were counted predict by their definition, and mix with another model."""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import lens.ngram_model
from lens.ngram_model import count_ngrams, mixed_losses
from tests.data.test_ngrams import Dictionary, V, numbers, texts


@given(texts, texts, st.integers(1, 6), st.sampled_from([1, 3, 1000]))
@example([0, 0], [1, 1], 2, 1000)
def test_ngrams_equal_their_definition(
    train: list[int], val: list[int], order: int, at_once: int
) -> None:
    found = count_ngrams(numbers(train), V, order)
    order = min(order, len(train))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lens.ngram_model, "READ_AT_ONCE", at_once)
        surprisal, lengths = found.read(numbers(val))
    nats, expected = Dictionary((*train,), order).read((*val,))
    assert surprisal == pytest.approx(nats, rel=1e-5)
    assert lengths.tolist() == expected


@given(st.floats(0.05, 0.95), st.integers(0, 9))
def test_mixture_recovers_the_weight_of_two_sources(weight: float, seed: int) -> None:
    """Tokens are drawn from the mixture of two distributions over 0 and 1."""
    random, p = np.random.default_rng(seed), np.array([[0.9, 0.1], [0.2, 0.8]])
    mixture = weight * p[0] + (1 - weight) * p[1]
    drawn = (random.random(20_000) < mixture[1]).astype(int)
    one, other = -np.log(p[:, drawn])
    best = -np.log(mixture[drawn])
    assert mixed_losses(one, other).mean() == pytest.approx(best.mean(), abs=1e-3)


def test_each_half_is_mixed_with_the_weight_of_the_other() -> None:
    """In the first half only one model is right, in the second the other."""
    right, wrong = np.full(50, 0.1), np.full(50, 5.0)
    mixed = mixed_losses(np.concatenate((right, wrong)), np.concatenate((wrong, right)))
    assert mixed == pytest.approx(4.9, abs=0.11)
    never = np.full(2, 999.0)
    assert mixed_losses(never, right[:2]) == pytest.approx(0.1, abs=1e-4)
    assert mixed_losses(right[:1], never[:1]) == pytest.approx(0.1 + math.log(2))
