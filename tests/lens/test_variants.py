"""Every number of the comparisons, recomputed from its definition."""

import math

import pytest
import torch
from torch import Tensor, nn

from lens import variants
from lens.capture import LayerPass, blocks_of, capture
from lens.checks import by_torch, head_by_head
from lens.metrics import entropy
from lens.variants import description_c, finite_mask, layer_comparisons, with_relu
from model.attention import MultiHeadAttention
from model.config import ModelConfig
from tests.lens.models import CLASSICAL, MODERN, D, H, make_model, some_tokens

C, T = H * D, 10
PAST = torch.ones(T, T).tril().bool()
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def case(config: ModelConfig) -> tuple[MultiHeadAttention, LayerPass, Tensor]:
    """A layer, what it did, and what it read in a shorter text."""
    model = make_model(config)
    seen = capture(model, some_tokens(1, T)).layers[1]
    return blocks_of(model)[1].attn, seen, capture(model, some_tokens(1, 7) % 5).layers[1].x_BTC


def softmax(scores: Tensor, allowed: Tensor) -> Tensor:
    """0 throughout where nothing is allowed."""
    return scores.masked_fill(~allowed, -math.inf).softmax(-1).nan_to_num(nan=0)


def heads_of(layer: nn.Linear, x: Tensor) -> Tensor:
    return layer(x).view(1, -1, H, D).transpose(1, 2)


def layer_of(attn: MultiHeadAttention, x: Tensor, source: Tensor, allowed: Tensor) -> Tensor:
    """Without rotary positions and QK-norm."""
    q, k, v = heads_of(attn.query, x), heads_of(attn.key, source), heads_of(attn.value, source)
    z = softmax(q @ k.mT / D**0.5, allowed) @ v
    return attn.out(z.transpose(1, 2).reshape(1, T, C))


def interleaved(attn: MultiHeadAttention, x: Tensor) -> Tensor:
    """Head h takes rows h, h + H, h + 2H ... of the projections; W_O and its columns stay."""
    layers = (attn.query, attn.key, attn.value)
    q, k, v = (layer(x).view(1, T, D, H).permute(0, 3, 1, 2) for layer in layers)
    q, k = attn.q_norm(q), attn.k_norm(k)
    if attn.rotary is not None:
        q, k = attn.rotary(q, 0), attn.rotary(k, 0)
    z = softmax(q @ k.mT / D**0.5, PAST) @ v
    return attn.out(z.transpose(1, 2).flatten(2))


def length(x: Tensor) -> float:
    return float(x.double().square().sum().sqrt())


def gap(dtype: torch.dtype, leak: float) -> float:
    """The first whole number at which a mask of -10000 lets so much through."""
    gaps = torch.arange(9000, 11000, dtype=torch.float64)
    scores = torch.stack((torch.zeros_like(gaps), gaps), dim=-1).to(dtype)
    masked = scores + torch.tensor([0.0, -10_000.0], dtype=dtype)
    leaked = masked.softmax(-1)[:, 1].double()
    return float(gaps[leaked > leak][0])


@torch.no_grad()
def recomputed(attn: MultiHeadAttention, seen: LayerPass, other: Tensor) -> dict[str, float]:
    """All that `layer_comparisons` should say; numbers that are equal but for rounding are 0."""
    x, q, k, v, out = seen.x_BTC, seen.q_BHTD, seen.k_BHSD, seen.v_BHSD, seen.output_BTC
    found = {
        f"{kind}: {what}": 0.0 for kind in ("plain", "causal") for what in ("output", "gradient")
    }

    many, merged = softmax(q @ k.mT / D**0.5, PAST), torch.cat(seen.z_BHTD.unbind(1), dim=-1)
    wide_q, wide_k, wide_v = (torch.cat(t.unbind(1), dim=-1) for t in (q, k, v))
    one = softmax(wide_q @ wide_k.mT / C**0.5, PAST)
    entropies = [float(entropy(many[0, h])) for h in range(H)]
    found["entropy of one head as wide as the layer (1 is uniform)"] = float(entropy(one))
    found[f"entropy of the {H} heads, least"] = min(entropies)
    found[f"entropy of the {H} heads, most"] = max(entropies)
    found["change of the heads' outputs"] = length(one @ wide_v - merged) / length(merged)
    moved = (many[0, 0] - many[0, 1]).clamp(min=0).sum(-1).mean()
    found["attention that two heads place differently, mean"] = float(moved)

    found["change of the layer's output without it"] = length(merged - out) / length(out)
    squares = {(i, j): float(attn.out.weight[i, j]) ** 2 for i in range(C) for j in range(C)}
    mixed = sum(square for (i, j), square in squares.items() if i // D != j // D)
    name = "fraction of W_O that carries one head's channels into another's"
    found[name] = mixed / sum(squares.values())

    found["output, head h owning rows h*D to (h+1)*D"] = 0.0
    found["gradients of x, W_q, W_k, W_v, W_O"] = 0.0
    name = "output, head h owning every H-th row instead"
    found[name] = float((interleaved(attn, x) - out).abs().max() / out.abs().max())

    everywhere = torch.ones(T, T).bool()
    plain, causal = layer_of(attn, x, x, everywhere), layer_of(attn, x, x, PAST)
    A = softmax(heads_of(attn.query, x) @ heads_of(attn.key, x).mT / D**0.5, everywhere)
    name = "fraction of attention that goes to later tokens without a mask"
    found[name] = float(A[..., ~PAST].sum()) / (H * T)
    for name, at in (("first", 0), ("last", -1)):
        change = length(causal[:, at] - plain[:, at]) / length(plain[:, at])
        found[f"causal against plain, at the {name} position"] = change
    found["cross with the text itself as source against plain"] = 0.0
    cross = layer_of(attn, x, other, torch.ones(T, 7).bool())
    name = "cross with 7 positions of another text against plain"
    found[name] = length(cross - plain) / length(plain)
    found[f"rows of the cross output, for {T} queries"] = T

    onto = torch.randn(q.shape, generator=torch.Generator().manual_seed(0))
    for name, divisor in (("with 1/sqrt(D)", D**0.5), ("without", 1.0)):
        A = softmax(q @ k.mT / divisor, PAST)
        gradient = onto @ v.mT  # of the weights; that of the scores by the softmax's Jacobian
        gradient = A * (gradient - (A * gradient).sum(-1, keepdim=True))
        found[f"{name}: entropy (1 is uniform)"] = float(entropy(A[0]).mean())
        found[f"{name}: largest weight of a row, mean"] = float(A.max(-1).values.mean())
        found[f"{name}: gradient at the scores, of a random loss"] = length(gradient)

    for name, dtype in DTYPES.items():
        found[f"{name}: score gap at which attention begins to leak"] = gap(dtype, 0.0)
        found[f"{name}: score gap at which half of it leaks"] = gap(dtype, 0.5 - 1e-6)
    found["-inf: what leaks at a gap of 40,000, in float16"] = 0.0
    scores = q @ k.mT / D**0.5
    found["largest gap on this prompt"] = max(
        float(scores[0, h, t, t + 1 :].max() - scores[0, h, t, : t + 1].max())
        for h in range(H)
        for t in range(T - 1)
    )
    found["attention that leaks here"] = 0.0

    found["fraction of the outputs that become zero"] = float((out < 0).float().mean())
    found["fraction of the output's length that is lost"] = length(out.clamp(max=0)) / length(out)

    inverted = layer_of(attn, x, x, ~PAST)
    found["the same mask given to both"] = length(inverted - causal) / length(causal)
    found["queries that may then attend to nothing"] = 1.0
    found["the mask inverted for nn.MultiheadAttention"] = 0.0
    return found


@pytest.mark.parametrize("config", [MODERN, CLASSICAL], ids=["modern", "classical"])
def test_every_number(config: ModelConfig) -> None:
    comparisons = [compute() for compute in layer_comparisons(*case(config)).values()]
    assert "".join(c.title[0] for c in comparisons) == "ABBDDCCCD"
    found = {name: number for c in comparisons for name, number in c.numbers.items()}
    expected = recomputed(*case(config))
    assert list(found) == list(expected)
    for name, number in found.items():
        rel = 0 if "score gap" in name else 1e-4
        assert number == pytest.approx(expected[name], rel=rel, abs=1e-5), name


def test_what_is_equal_would_show_if_it_were_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "by_torch", lambda *a, **k: 1.5 * by_torch(*a, **k))
    monkeypatch.setattr(variants, "head_by_head", lambda *a: 1.5 * head_by_head(*a))
    found = {
        k: number
        for compute in layer_comparisons(*case(MODERN)).values()
        for k, number in compute().numbers.items()
    }
    for name, number in found.items():
        if name.startswith(("plain: ", "causal: ", "gradients")):
            assert number == pytest.approx(1 / 3, abs=1e-3), name
        if name.startswith(("output, head h owning rows", "the mask inverted")):
            assert number == pytest.approx(1 / 2, abs=1e-3), name


def test_a_finite_mask_leaks_where_scores_are_large() -> None:
    attn, seen, _ = case(CLASSICAL)
    with torch.no_grad():
        attn.query.weight *= 1e5
        found = finite_mask(attn, seen.x_BTC).numbers
        q, k = heads_of(attn.query, seen.x_BTC), heads_of(attn.key, seen.x_BTC)
        A = (q @ k.mT / D**0.5 - 10_000.0 * ~PAST).softmax(-1)
    assert found["attention that leaks here"] == pytest.approx(float(A[..., ~PAST].sum()), abs=0.1)
    assert found["attention that leaks here"] > 1 and found["largest gap on this prompt"] > 1e4


@pytest.mark.parametrize("masked", [False, True])
def test_description_c(masked: bool) -> None:
    attn, seen, _ = case(CLASSICAL)
    steps = description_c(attn, seen.x_BTC, masked)
    q, k, v = (heads_of(layer, seen.x_BTC) for layer in (attn.query, attn.key, attn.value))
    scores = q @ k.mT - masked * 10_000.0 * ~PAST
    z = scores.softmax(-1) @ v
    expected = attn.out(z.transpose(1, 2).flatten(2)).clamp(min=0)
    assert torch.allclose(steps["weights A"].value, scores.softmax(-1), atol=1e-6)
    assert torch.allclose(steps["ReLU"].value, expected, atol=1e-6)


def test_the_relu_is_put_into_a_copy() -> None:
    model, tokens = make_model(), some_tokens(1, T)
    before = model(tokens)
    relu = capture(with_relu(model), tokens)
    block, x = blocks_of(model)[0], relu.residual[0]
    raw = block.attn(block.attn_norm(x), causal=True)
    assert torch.equal(relu.layers[0].output_BTC, raw.clamp(min=0))
    assert all(bool((layer.output_BTC >= 0).all()) for layer in relu.layers)
    assert torch.equal(model(tokens), before)
