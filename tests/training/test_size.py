"""The size estimates match a real step."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from model.config import ModelConfig
from model.gpt import GPT, next_token_loss
from training.config import TrainConfig
from training.size import describe_size, flops_per_token

CHOICES = [
    {"n_layer": 2, "n_embd": 64, "n_head": 2, "block_size": 256},
    {"activation": "gelu", "bias": True, "positions": "learned"},
    {"dropout": 0.1, "ngrams": 3},
]


@pytest.mark.parametrize("choices", CHOICES, ids=str)
def test_size_estimates_match_a_real_step(choices: dict[str, Any]) -> None:
    """PyTorch counts the FLOPs, with explicit attention because it sees only plain matmuls. Memory
    is what a forward pass keeps for the backward pass."""
    config = ModelConfig(**choices | {"attention": "explicit"})
    train = TrainConfig(batch_size=8, gradient_accumulation_steps=2)
    model, tokens = GPT(config, 65), torch.randint(65, (4, config.block_size + 1))
    held = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        held[storage.data_ptr()] = storage.nbytes()
        return tensor

    with FlopCounterMode(display=False) as counter:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = next_token_loss(model(tokens[:, :-1]), tokens[:, 1:])
        loss.backward()
    assert flops_per_token(model) * 4 * config.block_size == counter.get_total_flops()
    parameters, memory, compute = describe_size(config, train, 65).splitlines()
    assert parameters == f"parameters  {model.num_parameters():,}"
    megabytes = (sum(held.values()) + 12 * model.num_parameters()) / 1e6 + 250
    assert float(memory.split()[2].replace(",", "")) == pytest.approx(megabytes, rel=0.02)
    assert compute == f"compute     {2 * counter.get_total_flops() / 1e9:,.1f} GFLOP per step"
