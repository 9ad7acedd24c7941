"""The AUC is that of a plain loop, and the probe that of a least-squares fit."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.probe import PENALTY, auc, probe_r2


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=30))
def test_auc_counts_the_pairs_in_order(rows: list[tuple[int, bool]]) -> None:
    positive = [score for score, is_positive in rows if is_positive]
    negative = [score for score, is_positive in rows if not is_positive]
    won = [(a > b) + (a == b) / 2 for a in positive for b in negative]
    scores = np.array([score for score, _ in rows], dtype=float)
    found = auc(scores, np.array([is_positive for _, is_positive in rows], dtype=bool))
    assert found == pytest.approx(np.mean(won)) if won else math.isnan(found)


def test_probe_is_a_ridge_regression() -> None:
    random = torch.Generator().manual_seed(1)
    x_nC, y_n = torch.randn(50, 3, generator=random), torch.randn(50, generator=random)
    y_n, fitted_n = y_n + x_nC[:, 1], torch.arange(50) < 20
    fit_nC, held_nC = x_nC[fitted_n].double().numpy(), x_nC[~fitted_n].double().numpy()
    mean_C, deviation_C = fit_nC.mean(0), fit_nC.std(0, ddof=1)
    # The penalty as additional rows of a plain least-squares fit
    rows_nC = np.vstack(((fit_nC - mean_C) / deviation_C, np.eye(3) * math.sqrt(PENALTY * 20)))
    target_n = y_n.double().numpy()
    offset = target_n[:20].mean()
    weight_C = np.linalg.lstsq(rows_nC, [*(target_n[:20] - offset), 0, 0, 0], rcond=None)[0]
    errors_n = target_n[20:] - offset - (held_nC - mean_C) / deviation_C @ weight_C
    expected = 1 - np.mean(errors_n**2) / target_n[20:].var()
    assert probe_r2(x_nC, y_n, fitted_n) == pytest.approx(expected, abs=1e-6)
