"""Every shipped config loads, builds and learns, on the meta device: shapes without numbers."""

from pathlib import Path

import pytest
import torch

from configs.load import read_config
from model.gpt import GPT, next_token_loss
from tests.conftest import ROOT
from training.optim import make_optimizer

SHIPPED = [*(ROOT / "configs").glob("*.yaml"), *(ROOT / "docs/speedrun").glob("*.yaml")]


@pytest.mark.parametrize("path", sorted(SHIPPED), ids=lambda path: path.name)
def test_loads_builds_and_learns(path: Path) -> None:
    config = read_config({}, str(path))
    with torch.device("meta"):
        model = GPT(config.model, config.data.vocab_size)
        make_optimizer(model, config.train)
        text = torch.zeros(2, config.model.block_size + 1, dtype=torch.long)
        next_token_loss(model(text[:, :-1]), text[:, 1:]).backward()
        assert all(p.grad is not None for p in model.parameters())
