"""The steps end where the model ends, and each is the formula it is called."""

import math
from dataclasses import replace

import pytest
import torch

from lens.capture import blocks_of, capture
from lens.trace import trace_layer
from model.config import ModelConfig
from tests.lens.models import CLASSICAL, MODERN, D, make_model, some_tokens


@pytest.mark.parametrize("config", [MODERN, CLASSICAL, replace(MODERN, bias=True)], ids=str)
def test_steps(config: ModelConfig) -> None:
    model = make_model(config)
    attn, seen = blocks_of(model)[1].attn, capture(model, some_tokens(2, 10)).layers[1]
    with torch.no_grad():
        steps = trace_layer(attn, seen.x_BTC, seen.output_BTC)
        projected = {
            "Q": attn.query(seen.x_BTC), "K": attn.key(seen.x_BTC), "V": attn.value(seen.x_BTC)
        }  # fmt: skip
    expected = {"input": seen.x_BTC, **projected}
    for name, x_BTC in projected.items():
        expected[f"{name} by head"] = torch.stack(x_BTC.split(D, dim=-1), dim=1)
    for name, norm in (("Q", attn.q_norm), ("K", attn.k_norm)):
        if config.qk_norm:
            expected[f"{name} normalized"] = norm(expected[f"{name} by head"]).detach()
        if config.positions == "rotary":
            expected[f"{name} rotated"] = seen.q_BHTD if name == "Q" else seen.k_BHSD
    products = seen.q_BHTD @ seen.k_BHSD.mT
    hidden = torch.ones(10, 10).triu(1).bool().expand_as(products)
    masked = (products / math.sqrt(D)).masked_fill(hidden, -math.inf)
    expected |= {"products": products, "scores": products / math.sqrt(D), "masked": masked}
    expected |= {"weights A": masked.softmax(-1), "heads z": masked.softmax(-1) @ seen.v_BHSD}
    expected["merged"] = torch.cat(expected["heads z"].unbind(1), dim=-1)
    expected["output"] = seen.output_BTC
    assert list(steps) == list(expected)
    sizes = {"B": 2, "T": 10, "S": 10, "C": 16, "H": 2, "D": 8}
    for name, step in steps.items():
        assert torch.allclose(step.value, expected[name], atol=1e-5), name
        assert tuple(step.value.shape) == tuple(sizes[letter] for letter in step.letters.split(","))
        assert ("+ b" in step.formula) == (config.bias and name in ("Q", "K", "V", "output"))
        assert (step.hidden is not None) == (name in ("masked", "weights A"))
        assert step.hidden is None or torch.equal(step.hidden, hidden)


def test_steps_that_are_not_the_models_are_refused() -> None:
    model = make_model()
    seen = capture(model, some_tokens(1, 10)).layers[1]
    with pytest.raises(RuntimeError, match="not what the model computed"):
        trace_layer(blocks_of(model)[0].attn, seen.x_BTC, seen.output_BTC)
    with pytest.raises(FloatingPointError, match="not finite"):
        trace_layer(blocks_of(model)[1].attn, seen.x_BTC, seen.output_BTC * math.inf)
