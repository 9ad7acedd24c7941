"""Small models to look into."""

from dataclasses import replace

import torch
from torch import Tensor

from model.config import ModelConfig
from model.gpt import GPT

L, H, D, VOCAB = 3, 2, 8, 11  # no two sizes are the same, so that none can stand for another
MODERN = ModelConfig(block_size=12, n_layer=L, n_head=H, n_embd=H * D)
CLASSICAL = replace(MODERN, positions="learned", qk_norm=False, bias=True, activation="gelu")


def make_model(config: ModelConfig = MODERN) -> GPT:
    """A model whose every weight matters: none is zero, and none so small that it hides."""
    torch.manual_seed(0)
    model = GPT(config, VOCAB).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape) * 0.3)
    return model


def some_tokens(*shape: int) -> Tensor:
    """Token ids, by default (10,)."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(VOCAB, shape or (10,), generator=generator)
