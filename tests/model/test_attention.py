"""The formula, the kernels, PyTorch's own module, masks and the cache agree."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from lens.capture import attention_weights
from model.attention import (
    KVCache,
    MultiHeadAttention,
    Rotary,
    attention,
    batched_attention,
    causal_mask,
)
from model.config import ModelConfig
from model.gpt import GPT


def make(
    n_embd: int = 32, n_head: int = 4, kernel: str = "fused", **options: Any
) -> MultiHeadAttention:
    torch.manual_seed(0)
    layer = MultiHeadAttention(n_embd, n_head, kernel=kernel, **options).double()
    nn.init.normal_(layer.out.bias)
    return layer


def as_torch_module(layer: MultiHeadAttention, n_embd: int) -> nn.MultiheadAttention:
    """PyTorch's module with the same weights."""
    theirs = nn.MultiheadAttention(n_embd, layer.n_head, batch_first=True).double()
    projections = (layer.query, layer.key, layer.value)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([p.weight for p in projections]))
        theirs.in_proj_bias.copy_(torch.cat([p.bias for p in projections]))
        theirs.out_proj.load_state_dict(layer.out.state_dict())
    return theirs


@pytest.mark.parametrize("kernel", ["fused", "explicit"])
@pytest.mark.parametrize("case", ["self", "causal", "cross", "masked cross"])
def test_same_numbers_as_torch_multihead_attention(kernel: str, case: str) -> None:
    layer = make(512, 8, kernel)
    theirs = as_torch_module(layer, 512)
    x = torch.randn(4, 10, 512, dtype=torch.float64, requires_grad=True)
    source = torch.randn(4, 7, 512, dtype=torch.float64) if "cross" in case else None
    mask = torch.rand(10, 7) < 0.7 if case == "masked cross" else None
    if mask is not None:
        mask[:, 0] = True

    ours = layer(x, source, mask=mask, causal=case == "causal")
    memory = x if source is None else source
    hidden = causal_mask(10, 10).logical_not() if case == "causal" else None
    if mask is not None:
        hidden = ~mask  # PyTorch's module marks the hidden cells
    expected, their_weights = theirs(
        x, memory, memory, attn_mask=hidden, average_attn_weights=False
    )

    assert ours.shape == (4, 10, 512)
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-12)
    (our_gradient,) = torch.autograd.grad(ours.square().sum(), x)
    (their_gradient,) = torch.autograd.grad(expected.square().sum(), x)
    torch.testing.assert_close(our_gradient, their_gradient, rtol=0, atol=1e-10)
    with attention_weights(layer) as weights:
        layer(x, source, mask=mask, causal=case == "causal")
    torch.testing.assert_close(weights[0], their_weights, rtol=0, atol=1e-12)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("case", ["self", "causal", "cross"])
def test_fused_and_explicit_agree(case: str, masked: bool) -> None:
    fused, explicit = make(kernel="fused"), make(kernel="explicit")
    x = torch.randn(2, 9, 32, dtype=torch.float64)
    source = torch.randn(2, 5, 32, dtype=torch.float64) if case == "cross" else None
    mask = torch.rand(2, 1, 9, 5 if case == "cross" else 9) < 0.6 if masked else None
    results = []
    for layer in (fused, explicit):
        output = layer(x, source, mask=mask, causal=case == "causal")
        output.square().sum().backward()
        results.append([output, *(p.grad for p in layer.parameters())])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-11)


def test_the_formula_by_hand() -> None:
    q = torch.tensor([[[[1.0, 0.0], [0.0, 2.0]]]])
    k = torch.tensor([[[[1.0, 0.0], [0.0, 1.0]]]])
    v = torch.tensor([[[[10.0, 0.0], [0.0, 10.0]]]])
    output, weights = attention(q, k, v, causal_mask(2, 2))
    e = torch.tensor(2.0 / 2**0.5).exp()
    torch.testing.assert_close(weights, torch.tensor([[[[1.0, 0.0], [1 / (1 + e), e / (1 + e)]]]]))
    torch.testing.assert_close(output, weights * 10)


@pytest.mark.parametrize("kernel", ["fused", "explicit"])
def test_a_query_that_may_attend_to_nothing_gathers_nothing(kernel: str) -> None:
    layer = make(kernel=kernel)
    x = torch.randn(1, 3, 32, dtype=torch.float64, requires_grad=True)
    mask = torch.ones(3, 3, dtype=torch.bool)
    mask[1] = False
    output = layer(x, mask=mask)
    torch.testing.assert_close(output[0, 1], layer.out.bias)
    output.sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()


def test_causal_weights_are_a_distribution_over_the_past() -> None:
    layer = make()
    with attention_weights(layer) as weights:
        layer(torch.randn(2, 6, 32, dtype=torch.float64), causal=True)
    assert weights[0].shape == (2, 4, 6, 6)
    torch.testing.assert_close(weights[0].sum(-1), torch.ones(2, 4, 6, dtype=torch.float64))
    assert (weights[0].triu(1) == 0).all()
    assert (weights[0].tril() > 0).sum() == 2 * 4 * 21


@pytest.mark.parametrize("kernel", ["fused", "explicit"])
def test_collecting_weights_changes_no_bit(kernel: str) -> None:
    layer = make(kernel=kernel)
    x = torch.randn(2, 6, 32, dtype=torch.float64)
    before = layer(x, causal=True)
    with attention_weights(layer) as weights:
        during = layer(x, causal=True)
    assert torch.equal(before, during)
    v = layer.split_heads(layer.value(x))
    torch.testing.assert_close(
        layer.out(layer.merge_heads(weights[0] @ v)), during, rtol=0, atol=1e-12
    )
    assert len(weights) == 1
    layer(x)
    assert len(weights) == 1, "collecting goes on outside the with block"


def test_refuses_what_makes_no_sense() -> None:
    with pytest.raises(ValueError, match="n_embd 10 must be divisible by n_head 3"):
        MultiHeadAttention(10, 3)
    x, source = torch.randn(1, 4, 32), torch.randn(1, 3, 32)
    rotary = MultiHeadAttention(32, 4, rotary=Rotary(8, 16))
    plain = MultiHeadAttention(32, 4)
    options: list[dict[str, Any]] = [{"causal": True}, {"cache": KVCache(1, 4, 16, 8, x)}]
    for layer, option in [(plain, options[0]), (plain, options[1]), (rotary, {})]:
        with pytest.raises(ValueError, match="cross-attention"):
            layer(x, source, **option)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.bfloat16, 0.05)])
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 9), st.integers(1, 6))
def test_batched_attention_is_the_formula(
    dtype: torch.dtype, tolerance: float, B: int, H: int, T: int, D: int
) -> None:
    """Values and gradients, those of the formula always in float64."""
    generator = torch.Generator().manual_seed(B * T + D)
    made = torch.randn(4, B, T, H, D, generator=generator).to(dtype)
    q, k, v, direction = made.transpose(2, 3)  # not contiguous, as after `split_heads`
    results: list[list[Tensor]] = []
    for kind in (dtype, torch.float64):
        q, k, v = (x.detach().to(kind).requires_grad_() for x in (q, k, v))
        formula = len(results) == 1
        output = attention(q, k, v, causal_mask(T, T))[0] if formula else batched_attention(q, k, v)
        gradients = torch.autograd.grad((output * direction.to(kind)).sum(), (q, k, v))
        results.append([output.double(), *(gradient.double() for gradient in gradients)])
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.06)])
def test_fused_and_explicit_models_agree_in_every_type(
    dtype: torch.dtype, tolerance: float
) -> None:
    """Logits and the gradient of every weight, relative to the largest."""
    tokens = torch.randint(0, 17, (3, 12), generator=torch.Generator().manual_seed(1))
    results = []
    for kernel in ("fused", "explicit"):
        torch.manual_seed(0)
        config = ModelConfig(
            block_size=12, n_layer=2, n_head=2, n_embd=16, zero_init=False, attention=kernel
        )
        model = GPT(config, 17)
        for p in model.parameters():
            if p.dim() == 2:
                p.data *= 10  # so that attention is far from uniform
        model.to(dtype)
        logits = model(tokens)
        assert logits.dtype == dtype
        logits.float().square().mean().backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        assert len(gradients) == len(list(model.parameters()))
        results.append([logits.detach(), *gradients])
    for fused, explicit in zip(*results, strict=True):
        largest = explicit.abs().max().item()
        torch.testing.assert_close(fused, explicit, rtol=0, atol=tolerance * largest)


def test_the_batched_products_are_for_causal_squares_in_bfloat16_on_a_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = []

    def spy(*args: Any) -> Tensor:
        calls.append(args)
        return batched_attention(*args)

    monkeypatch.setattr("model.attention.batched_attention", spy)
    x = torch.randn(1, 6, 32)
    make().float()(x, causal=True)
    layer, x = make().bfloat16(), x.bfloat16()
    layer(x)
    layer(x, mask=causal_mask(6, 6), causal=True)
    cache = KVCache(1, 4, 8, 8, x)
    cache.append(*torch.zeros(2, 1, 4, 2, 8))
    layer(x, causal=True, cache=cache)  # six queries, eight keys
    assert not calls
    layer(x, causal=True)
    assert len(calls) == 1


@given(st.integers(0, 20), st.integers(1, 8), st.sampled_from([2, 6, 8]))
def test_rotary_turns_complex_numbers(start: int, T: int, D: int) -> None:
    """Coordinate i and coordinate i + D / 2 are one complex number, turned by its own angle."""
    torch.manual_seed(0)
    x = torch.randn(2, 3, T, D, dtype=torch.float64)
    turned = Rotary(D, 32).double()(x, start)
    positions = torch.arange(start, start + T, dtype=torch.float64)[:, None]
    speeds = 10_000.0 ** (-2 * torch.arange(D // 2, dtype=torch.float64) / D)
    numbers = torch.complex(x[..., : D // 2], x[..., D // 2 :])
    expected = numbers * torch.polar(torch.ones(T, D // 2, dtype=torch.float64), positions * speeds)
    # The tables are float32 numbers, which is what the tolerance allows for.
    both = torch.cat((expected.real, expected.imag), dim=-1)
    torch.testing.assert_close(turned, both, rtol=0, atol=1e-6)


@given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 11))
def test_rotary_scores_depend_on_the_distance_alone(i: int, j: int, shift: int) -> None:
    torch.manual_seed(0)
    rotary = Rotary(8, 32).double()
    q, k = (
        torch.randn(1, 1, 1, 8, dtype=torch.float64),
        torch.randn(1, 1, 1, 8, dtype=torch.float64),
    )

    def score(a: int, b: int) -> Tensor:
        return (rotary(q, a) * rotary(k, b)).sum()

    # The tables are float32 numbers, which is what the tolerance allows for.
    torch.testing.assert_close(score(i, j), score(i + shift, j + shift), rtol=0, atol=1e-5)
    torch.testing.assert_close(rotary(q, i).norm(), q.norm(), rtol=1e-6, atol=0)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.sampled_from(["fused", "explicit"]))
def test_any_split_over_the_cache_equals_the_whole(pieces: list[int], kernel: str) -> None:
    layer = make(kernel=kernel, rotary=Rotary(8, 20).double(), qk_norm=True)
    x = torch.randn(2, sum(pieces), 32, dtype=torch.float64)
    cache = KVCache(2, 4, 20, 8, x)
    parts = [layer(part, causal=True, cache=cache) for part in torch.split(x, pieces, dim=1)]
    torch.testing.assert_close(torch.cat(parts, 1), layer(x, causal=True), rtol=0, atol=1e-12)


def test_the_cache_refuses_what_does_not_fit() -> None:
    cache = KVCache(1, 1, 4, 2, torch.empty(0))
    cache.append(torch.ones(1, 1, 3, 2), torch.ones(1, 1, 3, 2))
    with pytest.raises(ValueError, match="5 positions do not fit a cache of 4"):
        cache.append(torch.ones(1, 1, 2, 2), torch.ones(1, 1, 2, 2))
    assert cache.length == 3


def test_attention_dropout_is_for_training_only() -> None:
    layer = make(kernel="explicit", dropout=0.5)
    x = torch.randn(1, 6, 32, dtype=torch.float64)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))
