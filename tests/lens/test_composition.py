"""Composition scores, against products of full matrices."""

from dataclasses import replace

import pytest
import torch

from lens.capture import blocks_of
from lens.composition import composition
from tests.lens.models import MODERN, D, H, L, make_model, ungrouped


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
