"""What numbers tell: how well a score separates two kinds, and what a linear probe reads."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

PENALTY = 0.01  # of a ridge regression, times the number of rows; the columns have deviation 1


def auc(scores: npt.NDArray[Any], positive: npt.NDArray[np.bool_]) -> float:
    """Return the area under the ROC curve: the probability that a random positive has a higher
    score than a random negative, where a tie counts as half.

    NaN if there are none of one kind.
    """
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (counts.cumsum() - (counts - 1) / 2)[place]  # from 1; the mean of ties
    P, N = int(positive.sum()), int((~positive).sum())
    return float((ranks[positive].sum() - P * (P + 1) / 2) / (P * N)) if P and N else float("nan")


def probe_r2(x_nC: Tensor, y_n: Tensor, fitted_n: Tensor) -> float:
    """Return R^2, the fraction of the variance that a linear probe explains, of rows that it was
    not fitted on.

    The probe is a ridge regression on standardized columns.

    Args:
        fitted_n: True for the rows that the probe is fitted on.
    """
    x_nC, y_n = x_nC.double(), y_n.double()
    x_nC = (x_nC - x_nC[fitted_n].mean(0)) / x_nC[fitted_n].std(0).clamp(min=1e-12)
    y_n = y_n - y_n[fitted_n].mean()
    fit_nC = x_nC[fitted_n]
    penalty_CC = PENALTY * len(fit_nC) * torch.eye(x_nC.size(1)).double()
    weight_C = torch.linalg.solve(fit_nC.T @ fit_nC + penalty_CC, fit_nC.T @ y_n[fitted_n])
    held_n = y_n[~fitted_n]
    errors_n = held_n - x_nC[~fitted_n] @ weight_C
    return float(1 - errors_n.square().sum() / (held_n - held_n.mean()).square().sum())
