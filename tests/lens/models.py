"""Small models for the tests of the lens."""

from dataclasses import replace

import torch
from torch import Tensor

from configs.config import ModelConfig
from model.gpt import GPT

L, H, D, VOCAB = 3, 2, 8, 11  # all different, so that swapped dimensions fail
MODERN = ModelConfig(block_size=12, n_layer=L, n_head=H, n_embd=H * D)
CLASSICAL = replace(MODERN, positions="learned", qk_norm=False, bias=True, activation="gelu")


def make_model(config: ModelConfig = MODERN) -> GPT:
    """Return a model with random weights that are large enough to affect the logits."""
    torch.manual_seed(0)
    model = GPT(config, VOCAB).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape) * 0.3)
    return model


def ungrouped(model: GPT) -> GPT:
    """Return the same model with a copy of the shared keys and values for each head of queries."""
    twin = GPT(replace(model.config, n_kv_head=None), VOCAB).eval()
    for name, weight in model.state_dict().items():
        if ".key." in name or ".value." in name:
            heads = weight.unflatten(0, (model.config.kv_heads, D))
            weight = heads.repeat_interleave(H // model.config.kv_heads, dim=0).flatten(0, 1)
        twin.state_dict()[name].copy_(weight)
    return twin


def some_tokens(*shape: int) -> Tensor:
    """Return random token ids, by default of shape (10,)."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(VOCAB, shape or (10,), generator=generator)
