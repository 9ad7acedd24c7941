"""The steps of a layer's formula."""

from dataclasses import replace

import pytest
import torch

from configs.config import ModelConfig
from lens.capture import capture
from lens.formula import layer_steps
from tests.lens.models import CLASSICAL, MODERN, make_model, some_tokens


@pytest.mark.parametrize(
    "config",
    [
        MODERN,
        CLASSICAL,
        replace(MODERN, bias=True, attention="explicit"),
        replace(MODERN, n_kv_head=1, window=4),
    ],
    ids=str,
)
@torch.no_grad()
def test_steps_have_their_shapes_and_formulas(config: ModelConfig) -> None:
    """Their numbers are checked before each study; tests/lens/test_verify.py does so, too."""
    layer = capture(make_model(config), some_tokens(2, 10)).layers[1]
    sizes = {"B": 2, "T": 10, "S": 10, "C": 16, "H": 2, "D": 8, "G*D": 8}
    for name, step in layer_steps(layer.attn, layer.x_BTC).items():
        assert tuple(step.value.shape) == tuple(sizes[letter] for letter in step.letters.split(","))
        assert ("+ b" in step.formula) == (config.bias and name in ("Q", "K", "V", "output"))
        assert (step.hidden is not None) == (name in ("masked", "weights A"))
        assert ("query - 4" in step.formula) == (name == "masked" and config.window == 4)
        assert ("each for 2" in step.formula) == (
            name in ("K by head", "V by head") and config.n_kv_head == 1
        )
