"""How far two computations of the same numbers are apart."""

import torch
from torch import Tensor


def relative_error(got: Tensor, want: Tensor, scale: Tensor | None = None) -> Tensor:
    """Return |got - want| elementwise, divided by the largest |want|, or by the largest of `scale`.
    The error of a number that is not finite is infinite."""
    largest = (want if scale is None else scale).double().abs().max()
    errors = (got.double() - want.double()).abs() / largest.clamp(min=1e-300)
    return errors.nan_to_num(nan=torch.inf, posinf=torch.inf)


def largest_error(got: Tensor, want: Tensor) -> float:
    """Return the largest relative error."""
    return relative_error(got, want).max().item()
