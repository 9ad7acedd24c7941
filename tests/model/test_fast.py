"""The fast forms, against the plain ones that they replace."""

from typing import Any

import pytest
import torch
from torch import nn

from model import attention as plain
from model import fast
from model.attention import causal_mask
from model.layers import Linear


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dropout_p", [0.0, 0.4])
@pytest.mark.parametrize("mask", [None, causal_mask(5, 5), causal_mask(5, 7), causal_mask(1, 4)])
def test_attention_equals_the_formula(mask: Any, dropout_p: float, dtype: torch.dtype) -> None:
    """Compare output, weights and gradients. With one seed, both drop the same weights."""
    T, S = (5, 6) if mask is None else mask.shape
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, n, 4, dtype=dtype, requires_grad=True) for n in (T, S, S))
    direction = torch.randn(2, 3, T, 4, dtype=dtype)
    results = []
    for attention in (fast.attention, plain.attention):
        torch.manual_seed(1)
        z, weights = attention(q, k, v, mask, dropout_p)
        results.append([z, weights, *torch.autograd.grad(z, (q, k, v), direction)])
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.05}[dtype]
    for got, want in zip(*results, strict=True):
        assert got.dtype == dtype
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
def test_joint_linear_equals_the_layers(bias: bool, dtype: torch.dtype) -> None:
    """Compare outputs and gradients, for layers of different widths."""
    torch.manual_seed(0)
    layers = nn.ModuleList(Linear(6, width, bias) for width in (4, 2, 3))
    x = torch.randn(2, 5, 6, dtype=dtype, requires_grad=True)
    results = []
    for outputs in (fast.JointLinear()(x, *layers), [layer(x) for layer in layers]):
        loss = torch.cat(outputs, dim=-1).float().square().sum()
        results.append([*outputs, *torch.autograd.grad(loss, (x, *layers.parameters()))])
    tolerance = 0.05 if dtype == torch.bfloat16 else 1e-5
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
