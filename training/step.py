"""What training repeats: load a batch, update the weights from it, evaluate."""

import math
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from data.batches import Batches
from data.tokenizer import Tokenizer
from model.gpt import next_token_loss
from training.optim import Optimizer
from training.processes import ALONE, Processes, no_sync
from training.runtime import StopSignal


def load_batches(
    batches: Batches, step: int, batch_size: int, device: torch.device, processes: Processes = ALONE
) -> Iterator[Tensor]:
    """This process's shard of the batch of each step from `step` on, (b, block_size + 1).

    A GPU gets the next batch while it computes on this one.
    """

    def load(step: int) -> Tensor:
        shard = processes.shard(batches.train(step, batch_size))
        return (shard.pin_memory() if device.type == "cuda" else shard).to(
            device, non_blocking=True
        )

    upcoming = load(step)
    while True:
        step += 1
        batch, upcoming = upcoming, load(step)
        yield batch


def train_step(
    forward: nn.Module,
    optimizer: Optimizer,
    batch: Tensor,
    lr_scale: float,
    processes: Processes = ALONE,
) -> tuple[float, float]:
    """One update of the weights.

    Args:
        forward: the model, perhaps compiled or wrapped in DistributedDataParallel.
        batch: sequences of tokens, (b, block_size + 1); this process's shard.
        lr_scale: multiplies the peak learning rates; see `schedule`.

    Returns:
        The mean loss in nats per token, and the norm of its gradient.

    Raises:
        FloatingPointError: when either is not finite; the weights are as they were.
    """
    config = optimizer.config
    micro_batches = batch.chunk(config.gradient_accumulation_steps)
    loss = torch.zeros((), device=batch.device)
    for i, micro_batch in enumerate(micro_batches, start=1):
        with no_sync(forward) if i < len(micro_batches) else nullcontext():
            logits_BTV = forward(micro_batch[:, :-1])
            micro_loss = next_token_loss(logits_BTV, micro_batch[:, 1:]) / len(micro_batches)
            micro_loss.backward()
        loss += micro_loss.detach()

    gradients = {name: p.grad for name, p in optimizer.parameters.items() if p.grad is not None}
    grad_norm = torch.nn.utils.get_total_norm(gradients.values())
    mean_loss, norm = torch.stack((loss, grad_norm)).tolist()  # both in one wait for the device
    mean_loss = processes.sum([mean_loss])[0] / processes.size
    if not (math.isfinite(mean_loss) and math.isfinite(norm)):
        bad = [name for name, gradient in gradients.items() if not gradient.isfinite().all()]
        forward.zero_grad()
        first = f", first in {bad[0]}" if bad else ""
        raise FloatingPointError(
            f"the loss is {mean_loss} and the gradient norm {norm}{first}; no weight was updated"
        )
    if config.grad_clip:
        weights = optimizer.parameters.values()
        torch.nn.utils.clip_grads_with_norm_(weights, config.grad_clip, grad_norm)
    optimizer.step(lr_scale)
    forward.zero_grad()
    return mean_loss, norm


@dataclass(frozen=True)
class Evaluation:
    """The loss over a split."""

    val_loss: float
    """Nats per token."""

    bits_per_char: float

    def describe(self, unit: str) -> str:
        """Both in words; for bytes also bits per byte, which others call bits per character."""
        per_byte = f"{self.val_loss / math.log(2):.3f} bits/byte  " if unit == "byte" else ""
        return f"{self.val_loss:.4f} nats/{unit}  {per_byte}{self.bits_per_char:.3f} bits/char"


@torch.no_grad()
def evaluate(
    forward: nn.Module,
    split: Iterator[Tensor],
    tokenizer: Tokenizer,
    device: torch.device,
    stop: StopSignal,
    processes: Processes = ALONE,
) -> Evaluation | None:
    """The loss over a whole split of the text, in one deterministic pass; None if stopped.

    Every token but the first is predicted once, from what precedes it in its sequence. Several
    processes take batches in turn and sum what they found.

    Raises:
        FloatingPointError: when the loss is not finite.
    """
    forward.eval()
    nats = tokens = characters = 0.0
    for turn, batch in enumerate(split):
        if stop:
            break
        if turn % processes.size != processes.rank:
            continue
        targets = batch[:, 1:]
        logits_BTV = forward(batch[:, :-1].to(device))
        nats += next_token_loss(logits_BTV, targets.to(device), reduction="sum").item()
        tokens += targets.numel()
        characters += tokenizer.count_characters(targets.numpy().ravel())
    forward.train()
    nats, tokens, characters, stopped = processes.sum([nats, tokens, characters, bool(stop)])
    if stopped:
        return None
    if not math.isfinite(nats):
        raise FloatingPointError(f"the validation loss is {nats}")
    bits = nats / math.log(2) / max(1, characters)  # a text of bytes may have no character
    return Evaluation(nats / tokens, bits)
