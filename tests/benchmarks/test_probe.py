"""The AUC is that of a plain loop, and the probe that of a least-squares fit."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.probe import auc


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=30))
def test_auc_counts_the_pairs_in_order(rows: list[tuple[int, bool]]) -> None:
    positive = [score for score, is_positive in rows if is_positive]
    negative = [score for score, is_positive in rows if not is_positive]
    won = [(a > b) + (a == b) / 2 for a in positive for b in negative]
    scores = np.array([score for score, _ in rows], dtype=float)
    found = auc(scores, np.array([is_positive for _, is_positive in rows], dtype=bool))
    assert found == pytest.approx(np.mean(won)) if won else math.isnan(found)
