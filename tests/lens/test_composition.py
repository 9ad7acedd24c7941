"""Composition scores against whole matrices, and what they must be where the answer is known."""

import pytest
import torch

from lens.capture import blocks_of
from lens.composition import composition, random_score
from tests.lens.models import D, H, L, make_model

C = H * D


@pytest.mark.parametrize("size", [1.0, 3e37])
def test_scores_are_their_definition(size: float) -> None:
    model = make_model()
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
            score = (R @ writes).norm() / (R.norm() * writes.norm())
            assert scores[kind] == pytest.approx(float(score))
        count += 1
    assert count == H * H * L * (L - 1) // 2


def test_a_head_that_reads_what_was_written_scores_high() -> None:
    model = make_model()
    first, second = blocks_of(model)[:2]
    with torch.no_grad():
        for block in (first, second):
            block.attn_norm.get_parameter("weight").fill_(1.0)
        second.attn.key.weight[:D] = first.attn.out.weight[:, D:].T  # head 0 reads head 1
        first.attn.out.weight[:, :D] = 0.0  # and head 0 writes nothing
    found = {(earlier, later): scores for earlier, later, scores in composition(model)}
    scores = found[(0, 1), (1, 0)]
    assert scores["K"] > 1.5 * scores["Q"] and scores["K"] > 1.5 * random_score(C, D)
    assert set(found[(0, 0), (1, 0)].values()) == {0.0}


def test_a_random_direction_lies_along_another_by_one_over_the_root_of_the_width() -> None:
    for width in (64, 256):
        assert random_score(width, 8) == pytest.approx(width**-0.5, rel=0.1)
