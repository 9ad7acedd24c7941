"""Activations, against their formulas, and dropout, against its distribution."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from model.layers import ACTIVATIONS, dropout

FORMULAS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": lambda x: x / 2 * (1 + torch.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: x.clamp(min=0),
    "relu2": lambda x: F.relu(x) ** 2,
}


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_activations_match_formulas_and_gradients(dtype: torch.dtype, name: str) -> None:
    x = torch.linspace(-2, 2, 12, dtype=dtype, requires_grad=True)
    exact = x.detach().double().requires_grad_()
    y, expected, direction = ACTIVATIONS[name](x), FORMULAS[name](exact), x.detach() + 3
    found = [y, *torch.autograd.grad(y, x, direction)]
    wanted = [expected, *torch.autograd.grad(expected, exact, direction.double())]
    for a, b in zip(found, wanted, strict=True):
        assert a.dtype == dtype
        torch.testing.assert_close(a, b.to(dtype))
    assert torch.equal(ACTIVATIONS[name](x.detach()), y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@given(
    st.lists(st.integers(1, 7), max_size=3),
    st.floats(0, 1, exclude_max=True) | st.sampled_from([1e-6, 1 - 1e-6, 1 - 1e-12]),
)
def test_dropout_zeroes_or_scales_elements(dtype: torch.dtype, shape: list[int], p: float) -> None:
    """Sizes need not be multiples of four. The gradient is scaled in the same way."""
    x = torch.full(shape, 3.0, dtype=dtype).requires_grad_()
    y = dropout(x, p)
    assert y.shape == x.shape and y.dtype == dtype and y.isfinite().all()
    kept, scaled = y[y != 0].double(), 3 / max(1 - p, 2**-16)  # p is at most 65,535 / 65,536
    rounding = 2**-7 if dtype == torch.bfloat16 else 2**-16 * scaled / 3
    assert ((kept - scaled).abs() <= rounding * scaled).all()
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient * 3, y, rtol=2**-7, atol=0)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_is_independent_with_probability_p(p: float) -> None:
    """One random number serves four elements: these and later calls must be independent."""
    torch.manual_seed(0)
    n = 100_000
    calls = [dropout(torch.ones(n, 4, dtype=torch.float64), p) for _ in range(2)]
    dropped = (torch.cat(calls, 1) == 0).double().T
    assert ((dropped.mean(1) - p).abs() < 5 * (p * (1 - p) / n) ** 0.5).all()
    assert (torch.corrcoef(dropped) - torch.eye(8)).abs().max() < 5 / n**0.5
