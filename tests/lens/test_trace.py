"""The steps end where the model ends, and each is the formula it is called."""

import math
from dataclasses import replace

import pytest
import torch

from lens.capture import blocks_of, capture
from lens.trace import print_matrix, print_steps, trace
from model.config import ModelConfig
from tests.lens.models import CLASSICAL, MODERN, make_model, some_tokens


@pytest.mark.parametrize("config", [MODERN, CLASSICAL, replace(MODERN, bias=True)], ids=str)
def test_steps(config: ModelConfig) -> None:
    model = make_model(config)
    seen = capture(model, some_tokens()[None]).layers[1]
    steps = {s.name: s for s in trace(blocks_of(model)[1].attn, seen.x_BTC, seen)}
    assert torch.allclose(steps["output"].value, seen.output_BTC, atol=1e-5)
    assert torch.allclose(steps["weights A"].value, seen.weights_BHTS, atol=1e-6)
    assert torch.allclose(steps["heads z"].value, seen.z_BHTD, atol=1e-5)
    products = seen.q_BHTD @ seen.k_BHSD.mT
    assert torch.allclose(steps["products"].value, products, atol=1e-4)
    assert torch.allclose(steps["scores"].value, products / math.sqrt(8), atol=1e-4)
    hidden = steps["masked"].masked
    assert hidden is not None and int(hidden.sum()) == 2 * 45
    assert bool((steps["masked"].value[hidden] == -math.inf).all())
    for step in steps.values():
        assert step.value.dim() == step.letters.count(",") + 1
    assert ("Q rotated" in steps) == (config.positions == "rotary")
    assert ("Q normalised" in steps) == config.qk_norm


def test_steps_that_are_not_the_models_are_refused() -> None:
    model = make_model()
    seen = capture(model, some_tokens()[None]).layers[1]
    with pytest.raises(RuntimeError, match="not what the model computed"):
        trace(blocks_of(model)[0].attn, seen.x_BTC, seen)


def test_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    model = make_model()
    seen = capture(model, some_tokens()[None]).layers[0]
    print_steps(trace(blocks_of(model)[0].attn, seen.x_BTC, seen))
    lines = capsys.readouterr().out.splitlines()
    (weights,) = (line for line in lines if line.startswith("weights A"))
    assert "(B,H,T,S)" in weights and "(1, 2, 10, 10)" in weights
    assert "1.0000 to 1.0000" in weights and "90 of 200" in weights
    assert len({line.index("(") for line in lines[2:3]}) == 1


def test_hidden_cells_are_not_printed_as_zero(capsys: pytest.CaptureFixture[str]) -> None:
    hidden = torch.ones(2, 2).triu(1).bool()
    print_matrix("title", torch.tensor([[1.0, 0.0], [0.25, 0.75]]), ["a", "␣"], hidden)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[-2] == ["0", "a", "1.000", "·"] and rows[-1] == ["1", "␣", "0.250", "0.750"]


def test_weights_of_no_use_are_named() -> None:
    """Numbers that are finite, and give none that are."""
    attn = blocks_of(make_model(MODERN))[0].attn
    with torch.no_grad():
        for weight in attn.parameters():
            weight.fill_(1e38)
    with pytest.raises(FloatingPointError, match="its weights are no use"):
        trace(attn, torch.randn(1, 8, MODERN.n_embd))
