"""The AUC is that of a plain loop, and the probe is that of the normal equations."""

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


def test_probe_reads_what_is_linear_and_nothing_else() -> None:
    """Columns of other sizes and means, one of them constant; more columns than the probe needs."""
    random = torch.Generator().manual_seed(0)
    x_nC = torch.randn(400, 6, generator=random) * torch.tensor([1e-3, 1, 1, 1e3, 1, 0]) + 7
    fitted_n = torch.arange(400) % 2 == 0
    linear_n = 2e3 * x_nC[:, 0] - 3e-3 * x_nC[:, 3] + 100
    noise_n = torch.randn(400, generator=random)
    assert probe_r2(x_nC, linear_n, fitted_n) == pytest.approx(1, abs=1e-3)
    assert -0.2 < probe_r2(x_nC, noise_n, fitted_n) < 0.05
    mixed_n = linear_n / linear_n.std() + noise_n
    assert 0.4 < probe_r2(x_nC, mixed_n, fitted_n) < 0.6
    changed_n = torch.where(fitted_n, linear_n, noise_n)  # the held-out rows are not fitted
    assert probe_r2(x_nC, changed_n, fitted_n) < 0


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
