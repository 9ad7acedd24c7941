"""The optimizer and its learning rates: Muon for the hidden matrices, AdamW for the rest."""

import math
from collections import defaultdict

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from training.config import TrainConfig

# Coefficients of Jordan et al. 2024: five such steps take any singular value in [0.0015, 1] to
# between 0.68 and 1.21, which is near enough to 1, and they are stable in bfloat16.
NEWTON_SCHULZ = [(3.4445, -4.7750, 2.0315)] * 5

ADAMW_STATE = ("step", "exp_avg", "exp_avg_sq")


def orthogonalize(matrices: Tensor) -> Tensor:
    """The same singular vectors with singular values all near 1, of each of (n, rows, columns).

    Newton-Schulz iteration: an odd polynomial of the matrix, which acts on each singular value by
    itself (Jordan et al. 2024, "Muon").
    """
    tall = matrices.size(-2) > matrices.size(-1)
    X = matrices.mT if tall else matrices  # the products below are of the shorter side
    X = X / (X.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for a, b, c in NEWTON_SCHULZ:
        A = X @ X.mT
        X = torch.baddbmm(X, torch.baddbmm(A, A, A, beta=b, alpha=c), X, beta=a)
    return X.mT if tall else X


class Optimizer:
    """Muon (Jordan et al. 2024) and AdamW (Loshchilov & Hutter 2019), each for its own weights.

    Muon is momentum whose updates are made orthogonal, so that every direction of a matrix is
    learned at the same rate. It is for matrices that map the residual stream to itself or to a
    hidden layer; embeddings, head, scales and biases are AdamW's, or all, where the config says so.
    Weight decay acts on matrices, not on scales and biases.

    (A class of its own rather than a `torch.optim.Optimizer`, whose first use imports PyTorch's
    compiler, which takes as long as a hundred steps of a small model.)
    """

    def __init__(
        self, model: nn.Module, config: TrainConfig, precision: torch.dtype = torch.float32
    ) -> None:
        """
        Args:
            precision: of Muon's products.
        """
        self.config, self.precision = config, precision
        self.parameters = dict(model.named_parameters())
        self.muon: dict[torch.Size, list[str]] = defaultdict(list)  # names by shape
        self.adamw: dict[float, list[str]] = defaultdict(list)  # names by weight decay
        self.state: dict[str, dict[str, Tensor]] = {}
        for name, weight in self.parameters.items():
            if config.optimizer == "muon" and name.startswith("blocks.") and weight.dim() == 2:
                self.muon[weight.shape].append(name)
                continue
            weight_decay = config.weight_decay if weight.dim() >= 2 else 0.0
            if name.startswith("ngram") and config.ngram_decay is not None:
                weight_decay = config.ngram_decay
            self.adamw[weight_decay].append(name)
            self.state[name] = {
                key: weight.new_zeros(()) if key == "step" else torch.zeros_like(weight.detach())
                for key in ADAMW_STATE
            }
        # Muon's weights of one shape lie in one tensor, and so do their momenta, so that a step
        # calls each operation once a shape instead of once a weight.
        self.stacks: dict[torch.Size, tuple[Tensor, Tensor]] = {}
        for shape, names in self.muon.items():
            weights = torch.stack([self.parameters[name].detach() for name in names])
            momenta = torch.zeros_like(weights)
            self.stacks[shape] = weights, momenta
            for name, weight, momentum in zip(names, weights, momenta, strict=True):
                self.parameters[name].data = weight
                self.state[name] = {"momentum": momentum}

    @torch.no_grad()
    def step(self, lr_scale: float) -> None:
        """Update the weights by their gradients, at this multiple of the peak learning rates.

        Raises:
            ValueError: for a weight without a gradient.
        """
        for shape in self.muon:
            self.muon_step(shape, lr_scale * self.config.muon_learning_rate)
        for weight_decay, names in self.adamw.items():
            self.adamw_step(names, lr_scale * self.config.adamw_learning_rate, weight_decay)

    def gradient(self, name: str) -> Tensor:
        """Of a weight, which must have one."""
        gradient = self.parameters[name].grad
        if gradient is None:
            raise ValueError(f"{name} has no gradient")
        return gradient

    def muon_step(self, shape: torch.Size, rate: float) -> None:
        """Of the matrices of one shape, (n, rows, columns)."""
        weights, momenta = self.stacks[shape]
        beta, (rows, columns) = self.config.muon_momentum, shape
        gradients = torch.stack([self.gradient(name) for name in self.muon[shape]])
        momenta.lerp_(gradients, 1 - beta)
        updates = gradients.lerp_(momenta, beta)  # Nesterov's: one step ahead
        scaled = rate * math.sqrt(max(1, rows / columns))
        orthogonal = orthogonalize(updates.to(self.precision))
        weights.mul_(1 - rate * self.config.weight_decay).add_(orthogonal, alpha=-scaled)

    def adamw_step(self, names: list[str], rate: float, weight_decay: float) -> None:
        """In PyTorch's fused kernel, where the device has one."""
        weights: list[Tensor] = [self.parameters[name] for name in names]
        steps, averages, squares = (
            [self.state[name][key] for name in names] for key in ADAMW_STATE
        )
        adamw(
            weights,
            [self.gradient(name) for name in names],
            averages,
            squares,
            [],
            steps,
            fused=weights[0].device.type in ("cpu", "cuda"),
            amsgrad=False,
            maximize=False,
            lr=rate,
            beta1=self.config.beta1,
            beta2=self.config.beta2,
            weight_decay=weight_decay,
            eps=1e-8,
        )


def get_lr_scale(step: int, config: TrainConfig) -> float:
    """The learning-rate multiplier `lr_scale` of the update after `step` updates, in [0, 1].

    It rises linearly over the warmup, reaching 1 with its last update, stays there, and over the
    last `decay_fraction` of the run falls along half a cosine or a line to `final_lr_fraction` at
    `max_steps`.
    """
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    start = max(config.warmup_steps, (1 - config.decay_fraction) * config.max_steps)
    progress = max(0.0, step - start) / max(1.0, config.max_steps - start)
    remaining = {
        "cosine": 0.5 * (1 + math.cos(math.pi * progress)),
        "linear": 1 - progress,
        "constant": 1.0,
    }[config.schedule]
    return config.final_lr_fraction + (1 - config.final_lr_fraction) * remaining


def get_multi_token_weight(step: int, config: TrainConfig) -> float:
    """The weight of the loss of the token after the next, after `step` updates: it falls along a
    line from `multi_token` to zero in the middle of the run."""
    return config.multi_token * max(0.0, 1 - 2 * step / config.max_steps)
