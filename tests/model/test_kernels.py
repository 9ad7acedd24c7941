"""Each fast form equals the formula in its docstring, in value and gradient."""

from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from model.attention import attention, causal_mask
from model.kernels import (
    Dropout,
    LayerNorm,
    Linear,
    RMSNorm,
    causal_attention,
    dropout,
    squared_relu,
    unfused_causal_attention,
)

KINDS = [(torch.float64, 1e-12), (torch.float32, 1e-4), (torch.bfloat16, 0.06)]


def with_gradients(
    compute: Callable[..., Tensor], inputs: Sequence[Tensor], dtype: torch.dtype
) -> list[Tensor]:
    """The output for these inputs, computed in a type, and the gradient of each, in float64."""
    inputs = [x.detach().to(dtype).requires_grad_() for x in inputs]
    output = compute(*inputs)
    assert output.dtype == dtype
    direction = torch.linspace(-1, 1, output.numel()).view(output.shape).to(dtype)
    gradients = torch.autograd.grad((output * direction).sum(), inputs)
    return [x.detach().double() for x in (output, *gradients)]


def assert_same(
    fast: Callable[..., Tensor],
    formula: Callable[..., Tensor],
    inputs: Sequence[Tensor],
    dtype: torch.dtype,
    tolerance: float,
) -> None:
    """On the same rounded inputs, the formula in float64."""
    inputs = [x.to(dtype) for x in inputs]
    got = with_gradients(fast, inputs, dtype)
    want = with_gradients(formula, inputs, torch.float64)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), KINDS)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 9), st.integers(1, 6))
def test_causal_attention(
    dtype: torch.dtype, tolerance: float, B: int, H: int, T: int, D: int
) -> None:
    generator = torch.Generator().manual_seed(B * T + D)
    # Not contiguous, as after `split_heads`.
    inputs = list(torch.randn(3, B, T, H, D, generator=generator).transpose(2, 3))

    def formula(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v, causal_mask(T, T))[0]

    for fast in (causal_attention, unfused_causal_attention):
        assert_same(fast, formula, inputs, dtype, tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), KINDS)
def test_squared_relu(dtype: torch.dtype, tolerance: float) -> None:
    x = torch.linspace(-2, 2, 12).view(3, 4)
    assert_same(squared_relu, lambda x: F.relu(x) ** 2, [x], dtype, tolerance)
    assert torch.equal(squared_relu(x), F.relu(x) ** 2)  # without gradients


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("weights", [torch.float32, torch.float64])
@pytest.mark.parametrize(("dtype", "tolerance"), KINDS)
def test_layers_compute_in_the_type_of_their_input(
    dtype: torch.dtype, tolerance: float, weights: torch.dtype, bias: bool
) -> None:
    torch.manual_seed(0)
    layers: list[nn.Module] = [Linear(6, 4, bias), LayerNorm(6, bias=bias), RMSNorm(6, eps=0.1)]
    formulas: list[Callable[..., Tensor]] = [
        lambda x, w, b=0: x @ w.T + b,
        lambda x, w, b=0: (
            (x - x.mean(-1, keepdim=True))
            / (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
            * w
            + b
        ),
        lambda x, w: x / (x.square().mean(-1, keepdim=True) + 0.1).sqrt() * w,
    ]
    for layer, formula in zip(layers, formulas, strict=True):
        names = [name for name, _ in layer.named_parameters()]
        assert names == ["weight", "bias"][: 1 + (bias and not isinstance(layer, RMSNorm))]
        own = [nn.init.uniform_(p, 0.5, 1.5).detach().to(dtype) for p in layer.parameters()]
        layer.to(weights)

        def fast(
            x: Tensor, *own: Tensor, layer: nn.Module = layer, names: list[str] = names
        ) -> Tensor:
            kept = {n: w.to(weights) for n, w in zip(names, own, strict=True)}
            return torch.func.functional_call(layer, kept, (x,))

        assert_same(fast, formula, [torch.randn(2, 3, 6), *own], dtype, max(1e-6, tolerance))


# --- dropout --------------------------------------------------------------------------------------


def seeded(x: Tensor, p: float, seed: int = 0) -> Tensor:
    torch.manual_seed(seed)
    return dropout(x, p)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@given(
    st.lists(st.integers(1, 7), max_size=3),
    st.floats(0, 1, exclude_max=True) | st.sampled_from([1e-6, 1 - 1e-6, 1 - 1e-12]),
    st.integers(0, 99),
)
def test_an_element_is_zero_or_scaled(
    dtype: torch.dtype, shape: list[int], p: float, seed: int
) -> None:
    """Of any shape: their sizes are multiples of four and not. So are gradients."""
    x = torch.full(shape, 3.0, dtype=dtype).requires_grad_()
    y = seeded(x, p, seed)
    assert y.shape == x.shape and y.dtype == dtype and y.isfinite().all()
    # p is at most 65,535 / 65,536; bfloat16 has three digits.
    rounding = 2**-7 if dtype == torch.bfloat16 else 2**-16 / max(1 - p, 2**-16)
    kept = y[y != 0]
    torch.testing.assert_close(
        kept, torch.full_like(kept, 3 / max(1 - p, 2**-16)), rtol=rounding, atol=0
    )
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient * 3, y, rtol=2**-7, atol=0)


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.9])
def test_each_of_four_elements_is_dropped_with_probability_p(p: float) -> None:
    """Four elements come from one random number, and are independent of each other."""
    n = 100_000
    dropped = (seeded(torch.ones(n, 4), p) == 0).double()
    assert ((dropped.mean(0) - p).abs() < 5 * (p * (1 - p) / n) ** 0.5).all()
    correlation = torch.corrcoef(dropped.T) - torch.eye(4)
    assert correlation.abs().max() < 5 / n**0.5


def test_a_seed_repeats_a_mask_and_calls_are_independent() -> None:
    x = torch.ones(10_001)
    first, second = seeded(x, 0.5), dropout(x, 0.5)
    assert torch.equal(seeded(x, 0.5), first)
    assert (first == second).float().mean().item() == pytest.approx(0.5, abs=0.03)


def test_nothing_is_dropped_but_in_training() -> None:
    x, layer, state = torch.ones(101), Dropout(0.5).eval(), torch.get_rng_state()
    assert dropout(x, 0.0) is x and layer(x) is x
    assert torch.equal(torch.get_rng_state(), state), "random numbers were drawn for nothing"
    assert (layer.train()(x) == 0).any()
