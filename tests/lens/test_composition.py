"""Pairs of heads: composition scores, against products of full matrices, and induction from
weights, on models whose answer is known."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from configs.config import ModelConfig
from lens import composition as module
from lens.capture import blocks_of
from lens.composition import composition, induction_from_weights
from lens.scores import pairs_of_heads
from lens.tables import Table
from model.gpt import GPT
from tests.lens.models import MODERN, VOCAB, D, H, L, make_model, ungrouped


@pytest.mark.parametrize("size", [1e-20, 3e37])
def test_scores_match_their_definition_at_any_weight_scale(size: float) -> None:
    model = make_model()
    blocks_of(model)[0].attn.out.weight.data[:, :D] = 0.0  # of head L0H0
    w = {name: weight.detach().double() for name, weight in model.named_parameters()}
    for weight in model.parameters():
        weight.data *= size

    def head(layer: int, h: int) -> dict[str, torch.Tensor]:
        name, rows = f"blocks.{layer}", slice(h * D, (h + 1) * D)
        norm = w[f"{name}.attn_norm.weight"].diag()
        q, k, v = (w[f"{name}.attn.{x}.weight"][rows] @ norm for x in ("query", "key", "value"))
        return {"QK": q.T @ k, "OV": w[f"{name}.attn.out.weight"][:, rows] @ v}

    count = 0
    for earlier, later, scores in composition(model):
        assert earlier[0] < later[0]
        writes, reads = head(*earlier)["OV"], head(*later)
        expected = {"Q": reads["QK"].T, "K": reads["QK"], "V": reads["OV"]}
        for kind, R in expected.items():
            score = (R @ writes).norm() / (R.norm() * writes.norm()).clamp(min=1e-9)
            assert scores[kind] == pytest.approx(float(score))
        count += 1
    assert count == H * H * L * (L - 1) // 2


def test_each_head_of_a_group_has_the_shared_keys_and_values() -> None:
    model = make_model(replace(MODERN, n_kv_head=1))
    for found, expected in zip(composition(model), composition(ungrouped(model)), strict=True):
        assert found[:2] == expected[:2] and found[2] == pytest.approx(expected[2])


def shares(model: GPT) -> dict[str, float]:
    return {f"L{i}H{a} L{j}H{b}": x for (i, a), (j, b), x in induction_from_weights(model)}


@pytest.mark.parametrize("norm", ["layer", "none"])
@torch.no_grad()
def test_query_of_a_copied_token_fits_its_own_key(norm: Any) -> None:
    """L0H0 copies a token, L0H1 writes the next one; L1H0 reads both, L1H1 has the query of the
    next token."""
    C, D, V = 32, 16, 11
    model = GPT(ModelConfig(n_layer=2, n_head=2, n_embd=C, block_size=4, norm=norm, mlp_ratio=0), V)
    same, after = torch.eye(D), torch.roll(torch.eye(V), 1, 0)  # of a row of logits: its next token
    shifted = F.pad(after, (0, D - V, 0, D - V))
    model.token_embedding.weight.copy_(torch.eye(V, C))
    first, second = blocks_of(model)
    for layer, per_head in {
        first.attn.value: (same, same),
        second.attn.query: (same, shifted),
        second.attn.key: (same, same),
    }.items():
        layer.weight.copy_(F.pad(torch.cat(per_head), (0, C - D)))
    first.attn.out.weight.copy_(F.pad(torch.cat((same, shifted), 1), (0, 0, 0, C - D)))
    expected = {"L0H0 L1H0": 1, "L0H0 L1H1": 0, "L0H1 L1H0": 0, "L0H1 L1H1": 1}
    assert shares(model) == expected


@pytest.mark.parametrize("config", [MODERN, replace(MODERN, n_kv_head=1, bias=True)], ids=str)
@torch.no_grad()
def test_induction_from_weights_is_that_of_a_plain_loop(
    config: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of random weights, among them those of the norms. Few rows of a table are made at once."""
    monkeypatch.setattr(module, "ENTRIES_AT_ONCE", 3 * H * VOCAB)
    model = make_model(config)
    found, E_VC = shares(model), model.token_embedding.weight
    assert len(found) == H * H * L * (L - 1) // 2 and len({*found.values()}) > 2
    for name, share in found.items():
        i, a, j, b = (int(name[at]) for at in (1, 3, 6, 8))
        (earlier, h), (later, g) = ((blocks_of(model)[n], n_head) for n, n_head in ((i, a), (j, b)))
        rows = [slice(n * D, (n + 1) * D) for n in (h, g)]
        of_key = [slice(0, D)] * 2 if config.n_kv_head else rows
        own = 0
        for query in range(VOCAB):
            q = later.attn.query(later.attn_norm(E_VC[query]))[rows[1]]
            scores = []
            for copied in range(VOCAB):
                v = earlier.attn.value(earlier.attn_norm(E_VC[copied]))[of_key[0]]
                written = later.attn_norm(earlier.attn.out.weight[:, rows[0]] @ v)
                scores.append(float(q @ later.attn.key(written)[of_key[1]]))
            own += scores.index(max(scores)) == query
        assert share == own / VOCAB, name


def test_tables_of_pairs_show_the_strongest(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model()
    monkeypatch.setattr("lens.scores.PAIRS", 5)
    _, title, table = pairs_of_heads(model)
    assert "without rotation, QK-norm, MLPs" in str(title) and isinstance(table, Table)
    _, random, *rows, others = table.rows
    ordered = sorted(shares(model).values(), reverse=True)
    assert random == ["random", 1 / VOCAB]
    assert [share for _, share in rows] == ordered[:5]
    assert all(shares(model)[name.replace(" ->", "")] == share for name, share in rows)
    assert others == ["mean of the other 7", pytest.approx(sum(ordered[5:]) / 7)]
    monkeypatch.setattr("lens.scores.MOST", 2 * 12 * D * VOCAB**2 - 1)
    assert "omitted, which is slow for a vocabulary of 11" in list(pairs_of_heads(model))[-1]
    (line,) = pairs_of_heads(make_model(replace(MODERN, n_layer=1)))
    assert "one layer has no earlier head" in str(line)
