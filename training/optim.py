"""The optimizer and its learning rate."""

import math

import torch
from torch import nn

from training.config import TrainConfig


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """AdamW (Loshchilov & Hutter 2019); weight decay on matrices, none on biases and gains."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    fused = parameters[0].device.type in ("cpu", "cuda")  # one kernel instead of many
    betas = (config.beta1, config.beta2)
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=betas, fused=fused)


def learning_rate(step: int, config: TrainConfig) -> float:
    """Of the update that follows `step` updates.

    It rises in a straight line over the warm-up, reaching the peak with its last update, then
    falls along half a cosine or a line, to reach `final_lr_fraction` of the peak at `max_steps`.
    """
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    progress = (step - config.warmup_steps) / max(1, config.max_steps - config.warmup_steps)
    remaining = {
        "cosine": 0.5 * (1 + math.cos(math.pi * progress)),
        "linear": 1 - progress,
        "constant": 1.0,
    }[config.schedule]
    floor = config.final_lr_fraction
    return config.learning_rate * (floor + (1 - floor) * remaining)
