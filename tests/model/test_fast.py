"""The fast forms, against the plain ones that they replace."""

from typing import Any

import pytest
import torch

from model import attention as plain
from model.attention import causal_mask
from model.fast import attention as fast


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dropout_p", [0.0, 0.4])
@pytest.mark.parametrize("mask", [None, causal_mask(5, 5), causal_mask(5, 7), causal_mask(1, 4)])
def test_attention_equals_the_formula(mask: Any, dropout_p: float, dtype: torch.dtype) -> None:
    """Compare output and gradients. With one seed, both drop the same weights."""
    T, S = (5, 6) if mask is None else mask.shape
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, n, 4, dtype=dtype, requires_grad=True) for n in (T, S, S))
    direction = torch.randn(2, 3, T, 4, dtype=dtype)
    results = []
    for attention in (fast.attention, plain.attention):
        torch.manual_seed(1)
        z = attention(q, k, v, mask, dropout_p)
        results.append([z, *torch.autograd.grad(z, (q, k, v), direction)])
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.05}[dtype]
    for got, want in zip(*results, strict=True):
        assert got.dtype == dtype
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
