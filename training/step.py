"""A training step: the model and its optimizer, and the gradients of a batch. The update of the
weights is in optim.py."""

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from configs.config import Config, TrainConfig
from model.gpt import GPT, next_token_loss
from training.machine import Machine
from training.optim import Optimizer, make_optimizer, update_weights


def make_model(config: Config, vocab_size: int, machine: Machine) -> tuple[GPT, Optimizer]:
    """Make the model, with weights drawn from the seed, and its optimizer."""
    torch.manual_seed(config.train.seed)
    model = GPT(config.model, vocab_size).to(machine.device)
    model.compute_dtype = precision = getattr(torch, machine.precision)
    if config.train.compile:
        # In compiled code, the gradients of embeddings are summed in an arbitrary order, so that
        # runs do not repeat bitwise.
        model.embed = torch.compiler.disable(model.embed)  # type: ignore[method-assign]
        model.compile(dynamic=False)
    return model, make_optimizer(model, config.train, precision)


def compute_gradients(
    model: nn.Module, weights: dict[str, nn.Parameter], batch: Tensor, config: TrainConfig
) -> tuple[Tensor, Tensor]:
    """Compute the loss of a batch, and store the gradient of each weight in its `grad`.

    Args:
        batch: token ids, (B, T + 1).

    Returns:
        The mean loss for the next token, in nats, and the norm of the gradient, both on the device.
    """
    model.zero_grad()
    device = next(model.parameters()).device
    batch = batch.pin_memory() if device.type == "cuda" else batch  # copied without waiting
    micro_batches = batch.to(device, non_blocking=True).chunk(config.gradient_accumulation_steps)
    total = torch.zeros((), device=device)
    for i, micro_batch in enumerate(micro_batches, start=1):
        if isinstance(model, DistributedDataParallel):  # average gradients only after the last one
            model.require_backward_grad_sync = i == len(micro_batches)
        loss = next_token_loss(model(micro_batch[:, :-1]), micro_batch[:, 1:])
        loss = loss / len(micro_batches)
        total += loss.detach()
        loss.backward()
    gradients = [weight.grad for weight in weights.values() if weight.grad is not None]
    return total, torch.nn.utils.get_total_norm(gradients)


def train_step(
    model: nn.Module, optimizer: Optimizer, batch: Tensor, config: TrainConfig, step: int
) -> tuple[Tensor, Tensor]:
    """Do one whole step, and return what `compute_gradients` does. The loop of train.py has two
    calls instead, between which it checks the result."""
    loss, norm = compute_gradients(model, optimizer.weights, batch, config)
    update_weights(optimizer, norm, config, step, config.first_weight_decay)
    return loss, norm
