"""Every shipped config builds a model with gradients, on the meta device (shapes only)."""

import dataclasses
from pathlib import Path

import pytest
import torch

from configs.load import Config, read_config
from model.gpt import GPT, next_token_loss
from tests.conftest import ROOT
from training.optim import make_optimizer

SHIPPED = [*(ROOT / "configs").glob("*.yaml"), *(ROOT / "docs/speedrun").glob("*.yaml")]


@pytest.mark.parametrize("path", sorted(SHIPPED), ids=lambda path: path.name)
def test_shipped_config_builds_a_trainable_model(path: Path) -> None:
    config = read_config({}, str(path))
    with torch.device("meta"):
        model = GPT(config.model, config.data.vocab_size)
        make_optimizer(model, config.train)
        text = torch.zeros(2, config.model.block_size + 1, dtype=torch.long)
        next_token_loss(model(text[:, :-1]), text[:, 1:]).backward()
        assert all(p.grad is not None for p in model.parameters())


def test_defaults_are_those_measured_in_the_docs() -> None:
    """Before you change a default, repeat the measurements. See test_optim.py for the optimizer."""
    default = Config()
    plain = dataclasses.asdict(default.model) | dataclasses.asdict(default.train)
    size = {"block_size": 128, "n_layer": 4, "n_head": 4, "n_embd": 128, "batch_size": 16}
    recipe = {"positions": "rotary", "activation": "relu2", "qk_norm": True, "zero_init": True}
    assert (size | recipe).items() <= plain.items()
