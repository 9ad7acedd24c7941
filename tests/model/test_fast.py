"""The fast forms, against the plain ones that they replace."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from model import attention as plain
from model.attention import causal_mask
from model.fast import attention as fast
from model.fast.dropout import dropout


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dropout_p", [0.0, 0.4])
@pytest.mark.parametrize("mask", [None, causal_mask(5, 5), causal_mask(5, 7), causal_mask(1, 4)])
def test_attention_equals_the_formula(
    mask: Any, dropout_p: float, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compare output and gradients. With one seed and PyTorch's dropout, both drop the same
    weights."""
    monkeypatch.setattr(fast, "dropout", F.dropout)
    T, S = (5, 6) if mask is None else mask.shape
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, n, 4, dtype=dtype, requires_grad=True) for n in (T, S, S))
    direction = torch.randn(2, 3, T, 4, dtype=dtype)
    results = []
    for attention in (fast.attention, plain.attention):
        torch.manual_seed(1)
        z = attention(q, k, v, mask, dropout_p)
        results.append([z, *torch.autograd.grad(z, (q, k, v), direction)])
    assert all(gradient.is_contiguous() for gradient in results[0][1:])
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.05}[dtype]
    for got, want in zip(*results, strict=True):
        assert got.dtype == dtype
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@given(
    st.lists(st.integers(0, 7), max_size=3),
    st.floats(0, 1) | st.sampled_from([1e-6, 1 - 1e-6, 1 - 1e-12]),
)
def test_dropout_zeroes_or_scales_elements(dtype: torch.dtype, shape: list[int], p: float) -> None:
    """Sizes need not be multiples of four. The gradient is scaled in the same way."""
    x = torch.full(shape, 3.0, dtype=dtype).requires_grad_()
    y = dropout(x, p)
    assert y.shape == x.shape and y.dtype == dtype and y.isfinite().all()
    kept, scaled = y[y != 0].double(), 3 / max(1 - p, 2**-17)
    rounding = 2**-7 if dtype == torch.bfloat16 else 2**-16 * scaled / 3
    assert ((kept - scaled).abs() <= rounding * scaled).all()
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient * 3, y, rtol=2**-7, atol=0)
    assert dropout(x, p, training=False) is x


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_is_independent_with_probability_p(p: float) -> None:
    """One random number serves four elements: these and later calls must be independent."""
    torch.manual_seed(0)
    n = 100_000
    calls = [dropout(torch.ones(n, 4, dtype=torch.float64), p) for _ in range(2)]
    dropped = (torch.cat(calls, 1) == 0).double().T
    assert ((dropped.mean(1) - p).abs() < 5 * (p * (1 - p) / n) ** 0.5).all()
    assert (torch.corrcoef(dropped) - torch.eye(8)).abs().max() < 5 / n**0.5
