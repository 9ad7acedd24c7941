"""Each fast form equals the formula in its docstring, in value and gradient."""

import math
from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from model.attention import attention, causal_mask
from model.kernels import ACTIVATIONS, NORMS, Dropout, Linear, causal_attention, dropout

each_type = pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float64, 1e-12), (torch.float32, 1e-4), (torch.bfloat16, 0.06)],
)


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


@each_type
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 9), st.integers(1, 6))
def test_causal_attention(
    dtype: torch.dtype, tolerance: float, B: int, H: int, T: int, D: int
) -> None:
    generator = torch.Generator().manual_seed(B * T + D)
    # Not contiguous, as after `split_heads`.
    inputs = list(torch.randn(3, B, T, H, D, generator=generator).transpose(2, 3))

    def formula(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v, causal_mask(T, T))[0]

    assert_same(causal_attention, formula, inputs, dtype, tolerance)


FORMULAS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": lambda x: x / 2 * (1 + torch.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "relu2": lambda x: F.relu(x) ** 2,
    "swiglu": lambda x: x * x.sigmoid(),
}


@each_type
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(dtype: torch.dtype, tolerance: float, name: str) -> None:
    x, fast = torch.linspace(-2, 2, 12).view(3, 4).to(dtype), ACTIVATIONS[name]
    assert_same(fast, FORMULAS[name], [x], dtype, tolerance)
    assert torch.equal(fast(x), fast(x.requires_grad_()))


LAYERS: dict[str, Callable[..., nn.Module]] = {"linear": partial(Linear, 6, 4)}
LAYERS |= {name: partial(norm, 6) for name, norm in NORMS.items()}
LAYER_FORMULAS: dict[str, Callable[..., Tensor]] = {
    "linear": lambda x, w, b=0: x @ w.T + b,
    "layernorm": lambda x, w, b=0: LAYER_FORMULAS["rmsnorm"](x - x.mean(-1, keepdim=True), w) + b,
    "rmsnorm": lambda x, w: x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * w,
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("weights", [torch.float32, torch.float64])
@each_type
def test_layers_compute_in_the_type_of_their_input(
    dtype: torch.dtype, tolerance: float, weights: torch.dtype, bias: bool, name: str
) -> None:
    torch.manual_seed(0)
    layer = LAYERS[name](bias=bias).to(weights)
    names = [name for name, _ in layer.named_parameters()]
    assert names == ["weight", "bias"][: 1 + (bias and name != "rmsnorm")]

    def fast(x: Tensor, *own: Tensor) -> Tensor:
        kept = {n: w.to(weights) for n, w in zip(names, own, strict=True)}
        return torch.func.functional_call(layer, kept, (x,))

    inputs = [torch.randn(2, 3, 6), *(torch.rand_like(p) + 0.5 for p in layer.parameters())]
    assert_same(fast, LAYER_FORMULAS[name], inputs, dtype, max(1e-6, tolerance))


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


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_each_of_four_elements_is_dropped_with_probability_p(p: float) -> None:
    """Four elements come from one random number; they and later calls are independent."""
    n = 100_000
    dropped = (torch.cat([seeded(torch.ones(n, 4), p), dropout(torch.ones(n, 4), p)], 1) == 0).T
    assert ((dropped.double().mean(1) - p).abs() < 5 * (p * (1 - p) / n) ** 0.5).all()
    correlation = torch.corrcoef(dropped.double()) - torch.eye(8)
    assert correlation.abs().max() < 5 / n**0.5
    assert torch.equal(seeded(torch.ones(n, 4), p) == 0, dropped[:4].T), "a seed repeats"


def test_nothing_is_dropped_but_in_training() -> None:
    x, layer, state = torch.ones(101), Dropout(0.5).eval(), torch.get_rng_state()
    assert dropout(x, 0.0) is x and layer(x) is x
    assert torch.equal(torch.get_rng_state(), state), "random numbers were drawn for nothing"
    assert (layer.train()(x) == 0).any()
