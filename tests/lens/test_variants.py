"""What the comparisons say is so, found by other means."""

import math

import pytest
import torch

from lens import variants
from lens.capture import blocks_of, capture
from lens.variants import DescriptionC, compare_layer, leak_gap
from model.attention import MultiHeadAttention, attention, causal_mask
from model.config import ModelConfig
from tests.lens.models import CLASSICAL, MODERN, make_model, some_tokens


@pytest.mark.parametrize("config", [MODERN, CLASSICAL], ids=["modern", "classical"])
def test_every_comparison(config: ModelConfig) -> None:
    model = make_model(config)
    seen = capture(model, some_tokens()[None]).layers[1]
    other = capture(model, some_tokens(7).flip(0)[None]).layers[1].x_BTC
    found = compare_layer(blocks_of(model)[1].attn, seen, other)
    assert [c.title[0] for c in found] == list("ABBDDCCCD")
    numbers = {(c.title.split(":")[1], name): n for c in found for name, n in c.numbers}
    assert all(math.isfinite(number) for number in numbers.values())
    assert all(c.why.rstrip(")").endswith(".") for c in found)
    by_name = {name: number for (_, name), number in numbers.items()}
    # what must be equal to rounding
    for name in (
        "plain: output",
        "causal: gradient",
        "output, head h owning rows h*D to (h+1)*D",
        "gradients of x, W_q, W_k, W_v, W_O",
        "cross with the text itself as source against plain",
        "causal against plain, at the last position",
        "the mask inverted for nn.MultiheadAttention",
    ):
        assert by_name[name] < 1e-5, name
    # what must not
    for name in (
        "output, head h owning every H-th row instead",
        "causal against plain, at the first position",
        "cross with 7 positions of another text against plain",
        "the same mask given to both",
        "length of the output that is lost, share",
        "change of the heads' outputs",
    ):
        assert by_name[name] > 1e-2, name
    assert by_name["rows of the cross output, for 10 queries"] == 10
    assert by_name["queries that may then attend to nothing"] == 1  # the last query
    spread = "entropy (1 is uniform)"
    assert by_name[f"without: {spread}"] < by_name[f"with 1/sqrt(D): {spread}"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_gap_is_where_the_finite_mask_begins_to_leak(dtype: torch.dtype) -> None:
    def leaked(gap: float) -> float:
        q = torch.tensor([[1.0, 0.0]], dtype=dtype)[None, None]
        k = torch.tensor([[0.0, 0.0], [gap * 2**0.5, 0.0]], dtype=dtype)[None, None]
        scores = (q @ k.transpose(-2, -1)).float() / 2**0.5
        masked = scores.to(dtype) + torch.tensor([0.0, -10_000.0], dtype=dtype)
        return float(masked.softmax(-1)[0, 0, 0, 1])

    first, half = leak_gap(dtype, 0.0), leak_gap(dtype, 0.5 - 1e-6)
    assert 9_800 < first <= half <= 10_100
    step = {torch.float32: 1.0, torch.bfloat16: 64.0, torch.float16: 8.0}[dtype]
    assert leaked(first - 2 * step) == 0.0
    assert leaked(half + 2 * step) >= 0.5
    # -inf hides even then
    q, k = torch.ones(1, 1, 2, 1), torch.tensor([[[[0.0], [2e4]]]])
    assert attention(q, k, k, causal_mask(2, 2))[1][0, 0, 0, 1] == 0


def test_description_c_has_its_three_choices() -> None:
    torch.manual_seed(0)
    attn, x = MultiHeadAttention(8, 2), torch.randn(5, 3, 8) * 3
    output, weights = DescriptionC(attn, masked=True)(x)
    assert output.shape == (5, 3, 8) and bool((output >= 0).all()) and bool((output == 0).any())
    assert not weights.triu(1).any()
    q, k, v = (attn.split_heads(p(x)) for p in (attn.query, attn.key, attn.value))
    unscaled = attention(q * 2, k, v, causal_mask(3, 3))  # D = 4: q times sqrt(D) undoes the scale
    assert torch.allclose(weights, unscaled[1], atol=1e-6)
    expected = torch.relu(attn.out(attn.merge_heads(unscaled[0])))
    assert torch.allclose(output, expected, atol=1e-5)
    assert DescriptionC(attn, masked=False)(x)[1].triu(1).any()


def test_the_relu_is_put_into_a_copy() -> None:
    model, tokens = make_model(), some_tokens()[None]
    before = model(tokens)
    seen = capture(variants.with_relu(model), tokens)
    assert all(bool((layer.output_BTC >= 0).all()) for layer in seen.layers)
    assert torch.equal(model(tokens), before)
