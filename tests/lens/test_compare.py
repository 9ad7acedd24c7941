"""Every number of the comparisons of a layer, recomputed from its definition."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lens import compare
from lens.capture import blocks_of, capture
from lens.compare import COMPARISONS, Case
from lens.metrics import entropy
from model.attention import MultiHeadAttention
from model.config import ModelConfig
from tests.lens.models import CLASSICAL, MODERN, D, H, make_model, some_tokens

C, T = H * D, 10
PAST = torch.ones(T, T).tril().bool()
OF_A_LAYER = [name for name in COMPARISONS if "masked" not in name]


def make_case(config: ModelConfig, query: float = 1.0) -> Case:
    """A layer whose queries are so many times as large, what it did, and what it read in a shorter
    text."""
    model, nothing = make_model(config), torch.empty(0)
    for weight in blocks_of(model)[1].attn.query.parameters():
        weight.data *= query
    layer = capture(model, some_tokens(1, T)).layers[1]
    other_BSC = capture(model, some_tokens(1, 7) % 5).layers[1].x_BTC
    no_subject: Any = None
    return Case(no_subject, nothing, 0, layer, other_BSC)


def found_in(case: Case) -> dict[str, Any]:
    """All numbers, by comparison and name."""
    return {f"{c}: {name}": n for c in OF_A_LAYER for name, n in COMPARISONS[c](case).items()}


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


def change(got: Tensor, want: Tensor) -> float:
    return float((got - want).square().sum().sqrt() / want.square().sum().sqrt())


def gap(dtype: torch.dtype) -> float:
    """The first whole number at which a mask of -10000 lets anything through."""
    for gap in range(9000, 11000):
        scores = torch.tensor([0.0, gap], dtype=dtype)
        if (scores + torch.tensor([0.0, -10_000.0], dtype=dtype)).softmax(-1)[1] > 0:
            return gap
    raise AssertionError


@torch.no_grad()
def recomputed(case: Case) -> dict[str, float]:
    """What `found_in` should say; numbers that are equal but for rounding are 0."""
    layer, attn, other = case.layer, case.layer.attn, case.other_BSC
    x, q, k, v, out = layer.x_BTC, layer.q_BHTD, layer.k_BHSD, layer.v_BHSD, layer.output_BTC
    kinds = [f"{kind}: {what}" for kind in ("plain", "causal") for what in ("output", "gradients")]
    found = {f"pytorch: {kind}": 0.0 for kind in kinds}

    many, merged = softmax(q @ k.mT / D**0.5, PAST), torch.cat(layer.z_BHTD.unbind(1), dim=-1)
    wide_q, wide_k, wide_v = (torch.cat(t.unbind(1), dim=-1) for t in (q, k, v))
    one = softmax(wide_q @ wide_k.mT / C**0.5, PAST)
    entropies = [float(entropy(many[0, h])) for h in range(H)]
    found["heads: entropy of the one head (1 is uniform)"] = float(entropy(one))
    found["heads: entropy of the several heads, lowest"] = min(entropies)
    found["heads: entropy of the several heads, highest"] = max(entropies)
    found["heads: change of the heads' outputs"] = change(one @ wide_v, merged)
    moved = (many[0, 0] - many[0, 1]).clamp(min=0).sum(-1).mean()
    found["heads: attention that two heads place differently, mean"] = float(moved)

    found["output: change of the layer's output without it"] = change(merged, out)
    squares = {(i, j): float(attn.out.weight[i, j]) ** 2 for i in range(C) for j in range(C)}
    mixed = sum(square for (i, j), square in squares.items() if i // D != j // D)
    name = "output: fraction of W_O that carries one head's channels into another's"
    found[name] = mixed / sum(squares.values())

    found["split: output, head h owning rows h*D to (h+1)*D"] = 0.0
    found["split: gradients of x, W_q, W_k, W_v, W_O"] = 0.0
    name = "split: output, head h owning every H-th row instead"
    found[name] = float((interleaved(attn, x) - out).abs().max() / out.abs().max())

    everywhere = torch.ones(T, T).bool()
    plain, causal = layer_of(attn, x, x, everywhere), layer_of(attn, x, x, PAST)
    A = softmax(heads_of(attn.query, x) @ heads_of(attn.key, x).mT / D**0.5, everywhere)
    name = "cross: attention to later tokens without a mask"
    found[name] = float(A[..., ~PAST].sum()) / (H * T)
    for name, at in (("first", 0), ("last", -1)):
        name = f"cross: causal against plain, {name} position"
        found[name] = change(causal[:, at], plain[:, at])
    found["cross: cross with the text itself against plain"] = 0.0
    crossed = layer_of(attn, x, other, torch.ones(T, 7).bool())
    found["cross: cross with 7 other positions against plain"] = change(crossed, plain)

    onto = torch.randn(q.shape, generator=torch.Generator().manual_seed(0))
    for name, divisor in (("with 1/sqrt(D)", D**0.5), ("without", 1.0)):
        A = softmax(q @ k.mT / divisor, PAST)
        gradient = onto @ v.mT  # of the weights; that of the scores by the softmax's Jacobian
        gradient = A * (gradient - (A * gradient).sum(-1, keepdim=True))
        found[f"scale: {name}: entropy (1 is uniform)"] = float(entropy(A[0]).mean())
        found[f"scale: {name}: largest weight of a row, mean"] = float(A.max(-1).values.mean())
        name = f"scale: {name}: gradient at the scores, of a random loss"
        found[name] = float(gradient.square().sum().sqrt())

    for name in ("float32", "bfloat16", "float16"):
        leaks_at = gap(getattr(torch, name))
        found[f"finite_mask: {name}: score gap at which -10000 leaks"] = leaks_at
    scores = q @ k.mT / D**0.5
    leaked = (scores - 10_000.0 * ~PAST).softmax(-1)[..., ~PAST].sum()
    found["finite_mask: attention that leaks on this prompt, -10000"] = float(leaked)
    found["finite_mask: attention that leaks on this prompt, -inf"] = 0.0
    found["finite_mask: largest score gap on this prompt"] = max(
        float(scores[0, h, t, t + 1 :].max() - scores[0, h, t, : t + 1].max())
        for h in range(H)
        for t in range(T - 1)
    )

    found["relu: fraction of the outputs that become zero"] = float((out < 0).float().mean())
    found["relu: fraction of the output's norm that is lost"] = change(out.clamp(min=0), out)
    inverted = layer_of(attn, x, x, ~PAST)
    found["polarity: the same mask given to both"] = change(inverted, causal)
    found["polarity: the mask inverted for the other"] = 0.0
    return found


@pytest.mark.parametrize(
    ("config", "query"), [(MODERN, 1), (CLASSICAL, 1), (CLASSICAL, 1e5)], ids=str
)
def test_every_number(config: ModelConfig, query: float) -> None:
    case = make_case(config, query)
    found, expected = found_in(case), recomputed(case)
    assert list(found) == list(expected)
    leaked = found["finite_mask: attention that leaks on this prompt, -10000"]
    assert (leaked > 1) == (query > 1)
    for name, number in found.items():
        abs = 0.1 if query > 1 else 1e-5  # of scores around 10,000
        assert number == pytest.approx(expected[name], rel=1e-4, abs=abs), name


def test_what_is_equal_would_show_if_it_were_not(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("layer_by_torch", "layer_per_head"):
        way = getattr(compare, name)
        monkeypatch.setattr(compare, name, lambda *a, way=way, **k: 1.5 * way(*a, **k))
    for name, number in found_in(make_case(MODERN)).items():
        if name.startswith("pytorch") or "gradients" in name:
            assert number == pytest.approx(1 / 3, abs=1e-3), name
        if "rows h*D" in name or "mask inverted" in name:
            assert number == pytest.approx(1 / 3 if "rows" in name else 1 / 2, abs=1e-3), name
