"""What is dropped is a fair share, what is kept makes up for it, and a seed decides which."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from model.kernels import Dropout, drop

shapes = st.lists(st.integers(1, 7), max_size=3)
TYPES = [torch.float32, torch.float64, torch.bfloat16]


def seeded(x: Tensor, share: float, seed: int = 0) -> Tensor:
    torch.manual_seed(seed)
    return drop(x, share)


@pytest.mark.parametrize("dtype", TYPES)
@given(shapes, st.floats(0, 1, exclude_max=True), st.integers(0, 99))
def test_an_element_is_zero_or_scaled(
    dtype: torch.dtype, shape: list[int], share: float, seed: int
) -> None:
    """Of any shape: their sizes are multiples of four and not."""
    x = torch.full(shape, 3.0, dtype=dtype)
    y = seeded(x, share, seed)
    assert y.shape == x.shape and y.dtype == dtype
    assert y.isfinite().all()
    kept = y[y != 0]
    # No share is more than 65,535 / 65,536; bfloat16 has three digits.
    scaled = 3 / max(1 - share, 2**-16)
    rounded = 2**-7 if dtype == torch.bfloat16 else 2**-16 / max(1 - share, 2**-16)
    torch.testing.assert_close(kept, torch.full_like(kept, scaled), rtol=rounded, atol=0)


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.9])
def test_the_share_that_was_asked_for_is_dropped_everywhere(share: float) -> None:
    """Four elements come from one random number: each of the four places has its share."""
    n = 100_000
    dropped = (seeded(torch.ones(n, 4), share) == 0).double()
    error = (share * (1 - share) / n) ** 0.5
    assert ((dropped.mean(0) - share).abs() < 5 * error).all()
    # Neighbours know nothing of each other.
    correlation = torch.corrcoef(dropped.T) - torch.eye(4)
    assert correlation.abs().max() < 5 / n**0.5


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_the_mean_stays(share: float) -> None:
    x = torch.linspace(0, 2, 400_001)
    assert seeded(x, share).mean().item() == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("share", [1 - 1e-6, 1 - 1e-12])
def test_a_share_near_one_divides_by_no_zero(share: float) -> None:
    y = seeded(torch.ones(200_001), share)
    assert y.isfinite().all()
    assert (y == 0).float().mean() > 0.999


def test_nothing_is_dropped_but_in_training() -> None:
    x = torch.ones(101)
    state = torch.get_rng_state()
    assert drop(x, 0.0) is x
    layer = Dropout(0.5).eval()
    assert torch.equal(layer(x), x)
    assert torch.equal(torch.get_rng_state(), state), "random numbers were drawn for nothing"
    layer.train()
    assert (layer(x) == 0).any()


@given(st.integers(1, 50), st.floats(0.05, 0.95))
def test_gradients_pass_where_the_values_passed(n: int, share: float) -> None:
    x = torch.rand(n, dtype=torch.float64) + 1
    x.requires_grad_()
    y = seeded(x, share)
    y.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad * x.detach(), y.detach())


def test_a_seed_decides_and_no_two_calls_are_the_same() -> None:
    x = torch.ones(1001)
    torch.manual_seed(5)
    first, second = drop(x, 0.5), drop(x, 0.5)
    assert torch.equal(seeded(x, 0.5, seed=5), first)
    assert not torch.equal(seeded(x, 0.5, seed=6), first)
    assert not torch.equal(first, second)
    same = (first == second).float().mean().item()
    assert same == pytest.approx(0.5, abs=0.1), "the masks of two calls are not independent"
