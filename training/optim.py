"""Optimizers, their schedules and regularization: Muon for the hidden matrices and AdamW for the
rest, or AdamW.

To add an optimizer, write a subclass of `Optimizer`, and name it in `OPTIMIZERS` and in the
`optimizer` field of configs/config.py.
"""

import math
from collections import defaultdict
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from configs.config import Config, TrainConfig

# Coefficients of Jordan et al. 2024: five steps map any singular value in [0.0015, 1] to between
# 0.68 and 1.21, which is close enough to 1, and they are stable in bfloat16.
NEWTON_SCHULZ = [(3.4445, -4.7750, 2.0315)] * 5
MOMENTUM = 0.95  # of Muon
# The default, with SIZE weights in its blocks, begins to memorize the TOKENS of the manual in pass
# number PASSES.
PASSES, SIZE, TOKENS = 3.0, 787_712, 418_543

Weights = dict[str, nn.Parameter]  # by name in the model


class Optimizer:
    """The interface of an optimizer for training and checkpoints.

    It is not a `torch.optim.Optimizer`, whose first use imports PyTorch's compiler, which takes as
    long as a hundred steps of a small model. A few lines can wrap such an optimizer.
    """

    weights: Weights
    """The weights to update."""

    state: dict[str, dict[str, Tensor]]
    """The tensors of each weight, made in `__init__`: a checkpoint saves and restores them in
    place. They cannot start from the weights, which --init_from loads later."""

    def step(self, lr_scale: float, weight_decay: float) -> None:
        """Update the weights with their gradients, at this fraction of the learning rates."""
        raise NotImplementedError


class AdamW(Optimizer):
    """AdamW (Loshchilov & Hutter 2019), with weight decay only for matrices and embeddings."""

    def __init__(self, weights: Weights, config: TrainConfig, precision: torch.dtype) -> None:
        self.weights = weights
        self.learning_rate, self.beta2 = config.adamw_learning_rate, config.beta2
        # Names by their own weight decay, if they have one
        self.groups: dict[float | None, list[str]] = defaultdict(list)
        self.state = {}
        for name, weight in weights.items():
            own = config.ngram_decay if name.startswith("ngram") else None
            self.groups[own if weight.dim() >= 2 else 0.0].append(name)
            zeros = torch.zeros_like(weight.detach())
            self.state[name] = {
                "step": weight.new_zeros(()),
                "exp_avg": zeros,
                "exp_avg_sq": zeros.clone(),
            }

    @torch.no_grad()
    def step(self, lr_scale: float, weight_decay: float) -> None:
        """See `Optimizer`. Uses PyTorch's fused kernel if the device has one."""
        rate = lr_scale * self.learning_rate
        for own, names in self.groups.items():
            weights = [self.weights[name] for name in names]
            states = [self.state[name] for name in names]
            adamw(
                [*weights],
                [gradient_of(weight) for weight in weights],
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                [],
                [state["step"] for state in states],
                fused=weights[0].device.type in ("cpu", "cuda"),
                amsgrad=False,
                maximize=False,
                lr=rate,
                beta1=0.9,
                beta2=self.beta2,
                weight_decay=weight_decay if own is None else own,
                eps=1e-8,
            )


class Muon(Optimizer):
    """Muon (Jordan et al. 2024) for the matrices inside the blocks, AdamW for the rest.

    Muon orthogonalizes the updates of momentum SGD, so that every direction of a matrix is learned
    at the same rate. It is meant for matrices inside the blocks, not for embeddings and the head.
    """

    def __init__(self, weights: Weights, config: TrainConfig, precision: torch.dtype) -> None:
        """
        Args:
            precision: type of the matmuls in the Newton-Schulz iteration.
        """
        self.weights, self.precision = weights, precision
        self.learning_rate = config.muon_learning_rate
        shapes: dict[torch.Size, list[str]] = defaultdict(list)
        rest: Weights = {}
        for name, weight in weights.items():
            if name.startswith("blocks.") and weight.dim() == 2:
                shapes[weight.shape].append(name)
            else:
                rest[name] = weight
        self.adamw = AdamW(rest, config, precision)
        self.state = dict(self.adamw.state)
        # All weights of one shape share one tensor, and so do their momenta, so that a step calls
        # each operation once per shape instead of once per weight. From here on, the weights of the
        # model are views of these tensors: copy into them, never replace them.
        self.stacks: list[tuple[list[str], Tensor, Tensor]] = []
        for names in shapes.values():
            stack = torch.stack([weights[name].detach() for name in names])
            momenta = torch.zeros_like(stack)
            self.stacks.append((names, stack, momenta))
            for name, weight, momentum in zip(names, stack, momenta, strict=True):
                weights[name].data = weight
                self.state[name] = {"momentum": momentum}

    @torch.no_grad()
    def step(self, lr_scale: float, weight_decay: float) -> None:
        """See `Optimizer`."""
        rate = lr_scale * self.learning_rate
        for names, stack, momenta in self.stacks:
            gradients = torch.stack([gradient_of(self.weights[name]) for name in names])
            momenta.lerp_(gradients, 1 - MOMENTUM)
            updates = gradients.lerp_(momenta, MOMENTUM)  # Nesterov momentum
            rows, columns = stack.shape[1:]
            # So that a tall matrix changes its outputs as much as a square one does.
            scaled = rate * math.sqrt(max(1, rows / columns))
            orthogonal = orthogonalize(updates.to(self.precision))
            stack.mul_(1 - rate * weight_decay).add_(orthogonal, alpha=-scaled)
        self.adamw.step(lr_scale, weight_decay)


OPTIMIZERS = {"adamw": AdamW, "muon": Muon}


def make_optimizer(
    model: nn.Module, config: TrainConfig, precision: torch.dtype = torch.float32
) -> Optimizer:
    """Make the optimizer that the config names."""
    return OPTIMIZERS[config.optimizer](dict(model.named_parameters()), config, precision)


def update_weights(
    optimizer: Optimizer, norm: Tensor, config: TrainConfig, step: int, weight_decay: float
) -> None:
    """Clip the gradients, whose norm is given, and let the optimizer use them.

    Args:
        step: the index of the step, from 0.
    """
    if config.grad_clip:
        weights = optimizer.weights.values()
        torch.nn.utils.clip_grads_with_norm_(weights, config.grad_clip, norm)
    optimizer.step(get_lr_scale(step, config), weight_decay)


def gradient_of(weight: Tensor) -> Tensor:
    """Return the gradient of a weight, or zeros if the loss does not depend on it."""
    return torch.zeros_like(weight) if weight.grad is None else weight.grad


def orthogonalize(matrices: Tensor) -> Tensor:
    """Return matrices (n, rows, columns) with the same singular vectors and singular values near 1.

    This is a Newton-Schulz iteration: an odd polynomial of the matrix acts on each singular value
    separately (Jordan et al. 2024, "Muon").
    """
    tall = matrices.size(-2) > matrices.size(-1)
    X = matrices.mT if tall else matrices  # so that A has the size of the shorter side
    X = X / (X.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for a, b, c in NEWTON_SCHULZ:
        A = X @ X.mT  # X becomes a X + (b A + c A^2) X
        X = torch.baddbmm(X, torch.baddbmm(A, A, A, beta=b, alpha=c), X, beta=a)
    return X.mT if tall else X


# The learning-rate multiplier over the progress x of the decay, from 1 at x = 0 to 0 at x = 1.
SCHEDULES: dict[str, Callable[[float], float]] = {
    "cosine": lambda x: 0.5 * (1 + math.cos(math.pi * x)),
    "linear": lambda x: 1 - x,
    "constant": lambda x: 1.0,
}


def get_lr_scale(step: int, config: TrainConfig) -> float:
    """Return the learning-rate multiplier for `step` (counted from 0), in [0, 1].

    It rises linearly during the warmup, reaches 1 at its last step, and stays at 1 until
    `decay_start`. Then it falls with the schedule to 0 at the end of the run.
    """
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    if step <= config.decay_start:
        return 1.0
    progress = (step - config.decay_start) / max(1.0, config.end - config.decay_start)
    return SCHEDULES[config.schedule](progress)


# --- regularization that rises with the number of times that the text has been read --------------


def regularization(
    weights: Weights, passes: float, tokens: int, config: Config
) -> tuple[float, float]:
    """Return the dropout probability and the weight decay after this many passes over a text of
    `tokens`.

    What the config omits rises with each doubling of the passes since the model began to memorize
    the text. It begins earlier if it is larger or if the text is shorter. docs/training.md has the
    measurements. Nothing here depends on the end of the run.
    """
    size = sum(weight.numel() for name, weight in weights.items() if name.startswith("blocks."))
    relative = passes / PASSES * size / SIZE * math.sqrt(TOKENS / max(1, tokens))
    doublings = math.log2(max(1.0, relative))
    dropout, weight_decay = config.model.dropout, config.train.first_weight_decay
    if dropout is None:
        dropout = min(0.5, 0.07 * doublings)
    if config.train.weight_decay is None:
        weight_decay += 0.15 * doublings
    return dropout, weight_decay
