"""The steps of a layer's formula, against the activations that `capture` reads from the model."""

import math
from dataclasses import replace

import pytest
import torch

from configs.config import ModelConfig
from lens.capture import capture
from lens.formula import layer_steps
from tests.lens.models import CLASSICAL, MODERN, D, make_model, some_tokens


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
