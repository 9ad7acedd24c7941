"""Small models to look into."""

from dataclasses import replace

import torch

from model.config import ModelConfig
from model.gpt import GPT

MODERN = ModelConfig(block_size=12, n_layer=2, n_head=2, n_embd=16)
CLASSICAL = replace(MODERN, positions="learned", qk_norm=False, bias=True, activation="gelu")
VOCAB = 11


def make_model(config: ModelConfig = MODERN, vocab_size: int = VOCAB) -> GPT:
    """A model whose every weight matters: none is zero, and none so small that it hides."""
    torch.manual_seed(0)
    model = GPT(config, vocab_size).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape) * 0.3)
    return model


def some_tokens(length: int = 10, vocab_size: int = VOCAB) -> torch.Tensor:
    """(length,)."""
    return torch.randint(vocab_size, (length,), generator=torch.Generator().manual_seed(1))
