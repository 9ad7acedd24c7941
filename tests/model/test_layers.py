"""Activations, against their formulas."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from model.layers import ACTIVATIONS

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
