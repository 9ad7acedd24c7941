"""The numbers of each comparison of a layer, against their definitions."""

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import study
from configs.config import ModelConfig
from lens import compare
from lens.capture import blocks_of, capture
from lens.compare import COMPARISONS, Compare, Inputs
from lens.metrics import entropy
from lens.subject import Subject
from model.attention import MultiHeadAttention
from model.gpt import GPT
from tests.conftest import make_run
from tests.lens.models import CLASSICAL, MODERN, D, H, make_model, some_tokens
from tests.lens.test_tasks import tables

C, T = H * D, 10
PAST = torch.ones(T, T).tril().bool()


def make_case(model: GPT, query: float = 1.0) -> Inputs:
    """Return a layer with queries scaled by `query`, and its input for a shorter text."""
    nothing = torch.empty(0)
    for weight in blocks_of(model)[1].attn.query.parameters():
        weight.data *= query
    layer = capture(model, some_tokens(1, T)).layers[1]
    no_subject: Any = None
    other_BSC = capture(model, some_tokens(1, 7) % 5).layers[1].x_BTC
    return Inputs(no_subject, nothing, 0, layer, other_BSC)


def measured(case: Inputs) -> dict[str, list[Any]]:
    """Return the numbers of each comparison."""
    names = [name for name in COMPARISONS if "masked" not in name]
    return {name: [*COMPARISONS[name](case).values()] for name in names}


def softmax(scores: Tensor, allowed: Tensor = PAST) -> Tensor:
    """Return the masked softmax, with zeros in rows that allow no position."""
    return scores.masked_fill(~allowed, -math.inf).softmax(-1).nan_to_num(nan=0)


def heads_of(layer: nn.Linear, x: Tensor) -> Tensor:
    return layer(x).view(1, -1, H, D).transpose(1, 2)


def layer_of(attn: MultiHeadAttention, x: Tensor, source: Tensor, allowed: Tensor) -> Tensor:
    """Compute the layer without rotary positions and QK-norm."""
    q, k, v = heads_of(attn.query, x), heads_of(attn.key, source), heads_of(attn.value, source)
    z = softmax(q @ k.mT / D**0.5, allowed) @ v
    return attn.out(z.transpose(1, 2).reshape(1, T, C))


def interleaved(attn: MultiHeadAttention, x: Tensor) -> Tensor:
    """Compute the layer with rows h, h + H, h + 2H ... of W_q, W_k and W_v in head h."""
    twin, order = copy.deepcopy(attn), [d * H + h for h in range(H) for d in range(D)]
    for name, weight in twin.named_parameters():
        if name.startswith(("query", "key", "value")):
            weight.data = weight.data[order]
    return twin(x, causal=True)


def change(got: Tensor, want: Tensor) -> float:
    return float((got - want).square().sum().sqrt() / want.square().sum().sqrt())


@torch.no_grad()
def recomputed(case: Inputs) -> dict[str, list[float]]:
    """Return what `measured` should return, with 0 for rounding errors."""
    layer, attn, other = case.layer, case.layer.attn, case.other_BSC
    x, q, k, v, out = layer.x_BTC, layer.q_BHTD, layer.k_BHSD, layer.v_BHSD, layer.output_BTC
    scores, window = q @ k.mT / D**0.5, attn.attend.window
    seen = PAST.triu(1 - window) if window else PAST
    many, merged = softmax(scores, seen), torch.cat(layer.z_BHTD.unbind(1), dim=-1)
    wide_q, wide_k, wide_v = (torch.cat(t.unbind(1), dim=-1) for t in (q, k, v))
    one = softmax(wide_q @ wide_k.mT / C**0.5, seen)
    entropies = [float(entropy(many[0, h])) for h in range(H)]
    moved = float((many[0, 0] - many[0, 1]).clamp(min=0).sum(-1).mean())
    apart = change(one @ wide_v, merged)
    uniform = float(entropy(seen / seen.sum(-1, keepdim=True)))
    of_heads = [float(entropy(one)), min(entropies), max(entropies)]
    found = {"one_head": [uniform, *of_heads, apart, moved]}
    squares_HDHD = attn.out.weight.square().view(H, D, H, D)
    own = sum(squares_HDHD[h, :, h].sum() for h in range(H))
    found["output"] = [change(merged, out), float(1 - own / squares_HDHD.sum())]
    found["split"] = [0.0, float((interleaved(attn, x) - out).abs().max() / out.abs().max())]
    plain, causal = layer_of(attn, x, x, PAST | True), layer_of(attn, x, x, PAST)
    at = [change(causal[:, t], plain[:, t]) for t in (0, -1)]
    crossed = layer_of(attn, x, other, torch.ones(T, 7).bool())
    found["cross"] = [*at, 0.0, change(crossed, plain)]
    onto, found["scale"] = (
        torch.randn(q.shape, generator=torch.Generator().manual_seed(0)),
        [uniform],
    )
    for factor in (1.0, D**0.5):
        A = softmax(scores * factor, seen)
        gradient = onto @ v.mT  # of the weights; the Jacobian of the softmax comes next
        gradient = A * (gradient - (A * gradient).sum(-1, keepdim=True))
        found["scale"] += [float(entropy(A[0]).mean()), float(A.max(-1).values.mean())]
        found["scale"] += [float(gradient.square().sum().sqrt())]
    leaked = float((scores - 10_000.0 * ~seen).softmax(-1)[..., ~seen].sum())
    found["finite_mask"] = [leaked, 0.0]
    found["relu"] = [float((out < 0).float().mean()), change(out.clamp(min=0), out)]
    found["polarity"] = [change(layer_of(attn, x, x, ~PAST), causal), 0.0]
    return found


@pytest.mark.parametrize(
    ("config", "query"),
    [(MODERN, 1), (replace(MODERN, window=4), 1), (CLASSICAL, 1), (CLASSICAL, 1e5)],
    ids=str,
)
def test_numbers_match_their_definitions(config: ModelConfig, query: float) -> None:
    case = make_case(make_model(config), query)
    found, expected = measured(case), recomputed(case)
    assert list(found) == list(expected)
    gaps = found["finite_mask"][:3]
    del found["finite_mask"][:3]
    assert gaps == pytest.approx([10_000] * 3, rel=0.02) and len({*gaps}) == 3
    assert (found["finite_mask"][0] > 1) == (query > 1)  # large scores leak through a finite mask
    for name, numbers in found.items():
        abs = 0.1 if query > 1 else 1e-5  # scores are around 10,000
        assert numbers == pytest.approx(expected[name], rel=1e-4, abs=abs), name


def test_entropy_in_a_context_of_one_token_is_undefined(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(Path("runs/a"), block_size=1)
    Path("text.txt").write_text("the value of the object is returned\n" * 60)
    assert study.main(["compare", "a", "--source=text.txt", "--steps=1"]) == 0
    words = capsys.readouterr().out.split()
    assert words.count("undefined") == 7 and "nan" not in words


@torch.no_grad()
def test_later_tokens_and_those_before_the_window_are_told_apart(workplace: Path) -> None:
    """Each visible alone, and both, against a model of one layer with that mask."""
    make_run(Path("runs/a"), n_layer=1, window=3)
    Path("text.txt").write_text("the value of the object is returned\n" * 60, newline="\n")
    (table,) = tables("compare", "--source=text.txt", "--only=unmasked", "--sequences=4")
    subject = Subject("a", Compare(source="text.txt"))
    model, tokens = subject.model, subject.sequences(4)
    attn = capture(model, tokens[:, :-1]).layers[0]
    size = tokens.size(1) - 1
    before, later = (torch.ones(size, size).bool() for _ in range(2))
    before, later = before.tril(-3), later.triu(1)
    for row, shown in zip(
        table[1:], (~before & ~later, ~before, ~later, before | True), strict=True
    ):
        z = softmax(attn.q_BHTD @ attn.k_BHSD.mT / attn.q_BHTD.size(-1) ** 0.5, shown) @ attn.v_BHSD
        block = blocks_of(model)[0]
        x = model.embed(tokens[:, :-1]) + attn.attn.out(z.transpose(1, 2).flatten(2))
        logits = model.unembed(x + block.mlp(block.mlp_norm(x)))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        assert row[1] == pytest.approx(loss.item(), rel=1e-5)
    assert len({f"{loss:.4f}" for _, loss in table[1:]}) == 4


def test_wrong_reference_layer_shows_as_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("layer_by_torch", "layer_per_head"):
        way = getattr(compare, name)
        monkeypatch.setattr(compare, name, lambda *a, way=way, **k: 1.5 * way(*a, **k))
    found = measured(make_case(make_model()))
    assert [found["split"][0], found["polarity"][1]] == pytest.approx([0.5] * 2, abs=1e-3)
