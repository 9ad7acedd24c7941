"""Composition scores against whole matrices, and what they must be where the answer is known."""

import pytest
import torch

from lens.capture import blocks_of
from lens.composition import chance_level, composition
from tests.lens.models import MODERN, D, H, L, make_model

C = H * D


def test_scores_are_their_definition() -> None:
    model = make_model(MODERN)
    found = {(pair.earlier, pair.later): pair.scores for pair in composition(model)}
    assert len(found) == H * H * L * (L - 1) // 2
    w = {name: weight.detach().double() for name, weight in model.named_parameters()}

    def head(layer: int, h: int) -> dict[str, torch.Tensor]:
        name, rows = f"blocks.{layer}", slice(h * D, (h + 1) * D)
        norm = w[f"{name}.attn_norm.weight"].diag()
        q, k, v = (w[f"{name}.attn.{x}.weight"][rows] @ norm for x in ("query", "key", "value"))
        return {"QK": q.T @ k, "OV": w[f"{name}.attn.out.weight"][:, rows] @ v}

    for (earlier, later), scores in found.items():
        assert earlier[0] < later[0]
        writes, reads = head(*earlier)["OV"], head(*later)
        expected = {"Q": reads["QK"].T, "K": reads["QK"], "V": reads["OV"]}
        for kind, R in expected.items():
            score = (R @ writes).norm() / (R.norm() * writes.norm())
            assert scores[kind] == pytest.approx(float(score))


def test_a_head_that_reads_what_was_written_scores_high_and_others_by_chance() -> None:
    model = make_model(MODERN)
    first, second = blocks_of(model)[:2]
    with torch.no_grad():
        for block in (first, second):
            block.attn_norm.get_parameter("weight").fill_(1.0)
        second.attn.key.weight[:D] = first.attn.out.weight[:, D:].T  # head 0 reads head 1
        first.attn.out.weight[:, :D] = 0.0  # and head 0 writes nothing
    found = {(pair.earlier, pair.later): pair.scores for pair in composition(model)}
    scores = found[(0, 1), (1, 0)]
    chance = chance_level(C, D)
    assert scores["K"] > 1.5 * scores["Q"] and scores["K"] > 1.5 * chance
    assert set(found[(0, 0), (1, 0)].values()) == {0.0}


def test_chance_is_one_over_the_root_of_the_width() -> None:
    """A random direction of C lies along another by 1 / sqrt(C)."""
    for C_wide in (64, 256):
        assert chance_level(C_wide, 8) == pytest.approx(C_wide**-0.5, rel=0.1)
