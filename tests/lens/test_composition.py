"""Pairs of heads: composition scores, against products of full matrices, and induction from
weights, against plain loops."""

from dataclasses import replace

import pytest
import torch

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


@pytest.mark.parametrize(
    "config", [MODERN, replace(MODERN, n_kv_head=1, bias=True), replace(MODERN, norm="none")]
)
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
