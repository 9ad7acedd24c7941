"""The steps of a layer's formula, against the activations that `capture` reads from the model."""

import math
from dataclasses import replace

import pytest
import torch

from lens.capture import capture
from lens.formula import layer_steps, third_write_up
from model.config import ModelConfig
from tests.lens.models import CLASSICAL, MODERN, D, H, make_model, some_tokens


@pytest.mark.parametrize(
    "config", [MODERN, CLASSICAL, replace(MODERN, bias=True, attention="explicit")], ids=str
)
@torch.no_grad()
def test_steps_match_the_captured_activations(config: ModelConfig) -> None:
    layer = capture(make_model(config), some_tokens(2, 10)).layers[1]
    steps = layer_steps(layer.attn, layer.x_BTC)
    scores = layer.q_BHTD @ layer.k_BHSD.mT / math.sqrt(D)
    hidden = torch.ones(10, 10).triu(1).bool().expand_as(scores)
    expected = {
        "V by head": layer.v_BHSD,
        "scores": scores,
        "masked": scores.masked_fill(hidden, -math.inf),
        "weights A": layer.weights_BHTS,
        "heads z": layer.z_BHTD,
        "output": layer.output_BTC,
    }
    assert ("Q rotated" in steps) == (config.positions == "rotary")
    assert ("K normalized" in steps) == config.qk_norm
    sizes = {"B": 2, "T": 10, "S": 10, "C": 16, "H": 2, "D": 8}
    for name, step in steps.items():
        assert torch.allclose(step.value, expected.get(name, step.value), atol=1e-5), name
        assert tuple(step.value.shape) == tuple(sizes[letter] for letter in step.letters.split(","))
        assert ("+ b" in step.formula) == (config.bias and name in ("Q", "K", "V", "output"))
        assert (step.hidden is not None) == (name in ("masked", "weights A"))
        assert step.hidden is None or torch.equal(step.hidden, hidden)


@pytest.mark.parametrize("masked", [False, True])
def test_third_write_up_matches_its_formula(masked: bool) -> None:
    layer = capture(make_model(CLASSICAL), some_tokens(1, 10)).layers[1]
    attn, x = layer.attn, layer.x_BTC
    steps = third_write_up(attn, x, masked)
    q, k, v = (W(x).view(1, 10, H, D).transpose(1, 2) for W in (attn.query, attn.key, attn.value))
    A = (q @ k.mT - masked * 10_000.0 * torch.ones(10, 10).triu(1)).softmax(-1)
    expected = attn.out((A @ v).transpose(1, 2).flatten(2)).clamp(min=0)
    assert torch.allclose(steps["weights A"].value, A, atol=1e-6)
    assert torch.allclose(steps["ReLU"].value, expected, atol=1e-6)
