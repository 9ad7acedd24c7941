"""The FLOPs match a real step."""

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from model.config import ModelConfig
from model.gpt import GPT, next_token_loss
from training.size import flops_per_token

CHOICES = [
    {"n_layer": 2, "n_embd": 64, "n_head": 2, "block_size": 256},
    {"activation": "gelu", "bias": True, "positions": "learned"},
    {"dropout": 0.1, "ngrams": 3},
]


@pytest.mark.parametrize("choices", CHOICES, ids=str)
def test_flops_match_a_real_step(choices: dict[str, Any]) -> None:
    """PyTorch counts them, with explicit attention because it sees only plain matmuls."""
    config = ModelConfig(**choices | {"attention": "explicit"})
    model, tokens = GPT(config, 65), torch.randint(65, (4, config.block_size + 1))
    with FlopCounterMode(display=False) as counter:
        next_token_loss(model(tokens[:, :-1]), tokens[:, 1:]).backward()
    assert flops_per_token(model) * 4 * config.block_size == counter.get_total_flops()
