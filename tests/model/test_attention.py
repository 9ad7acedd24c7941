"""The layer equals PyTorch's own and one written out by hand, in every kernel, mask and type."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from model.attention import Kernel, MultiHeadAttention, Rotary, attention, join_masks

each_kernel = pytest.mark.parametrize("kernel", ["fused", "explicit"])


def make(n_embd: int, n_head: int, kernel: Kernel, **options: Any) -> MultiHeadAttention:
    torch.manual_seed(0)
    layer = MultiHeadAttention(n_embd, n_head, kernel=kernel, **options).double()
    for name, parameter in layer.named_parameters():
        if "bias" in name:
            nn.init.uniform_(parameter, 0.5, 1.5)
    return layer


@each_kernel
@pytest.mark.parametrize("case", ["self", "causal", "masked", "masked causal", "cross"])
@pytest.mark.parametrize("shape", [(4, 10, 7, 512, 8), (2, 6, 9, 12, 3), (1, 1, 2, 4, 1)])
def test_equals_torch_multihead_attention(
    kernel: Kernel, case: str, shape: tuple[int, int, int, int, int]
) -> None:
    """Output, gradients, and the weights by what a hook on `attend` sees."""
    B, T, S, C, H = shape
    ours, theirs = make(C, H, kernel), nn.MultiheadAttention(C, H, batch_first=True).double()
    projections = (ours.query, ours.key, ours.value)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([p.weight for p in projections]))
        theirs.in_proj_bias.copy_(torch.cat([p.bias for p in projections]))
        theirs.out_proj.load_state_dict(ours.out.state_dict())
    x = torch.randn(B, T, C, dtype=torch.float64, requires_grad=True)
    source = torch.randn(B, S, C, dtype=torch.float64) if case == "cross" else None
    memory = x if source is None else source
    mask, causal = None, "causal" in case
    if case not in ("self", "causal"):
        mask = torch.rand(T, memory.size(1)) < 0.6
        mask[:, 0] = True
    may_attend = torch.ones(T, memory.size(1)).bool() if mask is None else mask
    if causal:
        may_attend = may_attend & torch.ones(T, T).tril().bool()

    seen: list[Any] = []
    ours.attend.register_forward_hook(lambda module, args, z: seen.append((args, z)))
    output = ours(x, source, mask=mask, causal=causal)
    expected, weights = theirs(  # True hides there
        x, memory, memory, attn_mask=~may_attend, average_attn_weights=False
    )
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-12)
    gradients = [torch.autograd.grad(y.square().sum(), x)[0] for y in (output, expected)]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-9)
    ((q, k, v, mask, causal), z) = seen[0]
    formula_z, formula_weights = attention(q, k, v, join_masks(q, k, mask, causal))
    torch.testing.assert_close(formula_weights, weights, rtol=0, atol=1e-12)
    torch.testing.assert_close(formula_z, z, rtol=0, atol=1e-12)


def rotate(x_BTD: Tensor, start: int) -> Tensor:
    """Channels i and i + D / 2 are a complex number, rotated by position * 10,000^(-2 i / D)."""
    D, T = x_BTD.size(-1), x_BTD.size(-2)
    angles = torch.arange(start, start + T)[:, None] * 10_000.0 ** (
        -2 * torch.arange(D // 2, dtype=torch.float64) / D
    )
    numbers = torch.complex(x_BTD[..., : D // 2], x_BTD[..., D // 2 :]) * torch.exp(1j * angles)
    return torch.cat((numbers.real, numbers.imag), dim=-1)


@given(st.integers(0, 20), st.integers(1, 8), st.sampled_from([2, 6, 8]))
def test_rotary_rotates_complex_numbers(start: int, T: int, D: int) -> None:
    x = torch.randn(2, 3, T, D, dtype=torch.float64, generator=torch.Generator().manual_seed(T))
    # The tables are of float32 numbers, which is what the tolerance allows for.
    torch.testing.assert_close(Rotary(D, 32)(x, start), rotate(x, start), rtol=0, atol=1e-6)


@each_kernel
def test_a_query_that_may_attend_to_nothing_gathers_nothing(kernel: Kernel) -> None:
    layer = make(32, 4, kernel)
    x = torch.randn(1, 3, 32, dtype=torch.float64, requires_grad=True)
    mask = torch.ones(3, 3, dtype=torch.bool)
    mask[1] = False
    output = layer(x, mask=mask)
    torch.testing.assert_close(output[0, 1], layer.out.bias)
    output.sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()


@each_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
def test_dropout_of_attention_weights(kernel: Kernel, dtype: torch.dtype, causal: bool) -> None:
    """With a single key, its value comes through scaled by 1 / (1 - p), or not at all; in
    evaluation, as it is."""
    attend = make(8, 2, kernel, dropout=0.3).to(dtype).attend
    v = torch.ones(200, 2, 12, 4, dtype=dtype)
    mask = None if causal else torch.eye(12, dtype=torch.bool)
    torch.manual_seed(0)
    z = attend(v, v, v, mask, causal)
    alone = (z[:, :, 0] if causal else z)[..., 0]  # the first query has only its own key
    kept = alone[alone != 0]
    assert len(kept) / alone.numel() == pytest.approx(0.7, abs=0.08)
    torch.testing.assert_close(kept, (v.new_ones(()) / 0.7).expand(len(kept)))
    torch.testing.assert_close(attend.eval()(v, v, v, mask, causal), v)


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(ValueError, match="n_embd 10 must be divisible by n_head 3"):
        MultiHeadAttention(10, 3)
