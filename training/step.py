"""What training repeats: load a batch, update the weights from it, evaluate."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from data.batches import Batches
from data.tokenizer import Tokenizer
from model.gpt import next_token_loss
from training.optim import Optimizer
from training.processes import ALONE, Processes, no_sync
from training.runtime import StopSignal


def load_batch(
    batches: Batches, step: int, batch_size: int, device: torch.device, processes: Processes = ALONE
) -> Tensor:
    """This process's shard of the batch after `step` updates, (b, block_size + 1)."""
    return processes.shard(batches.train(step, batch_size)).to(device)


def train_step(
    model: nn.Module,
    optimizer: Optimizer,
    batch: Tensor,
    lr_scale: float,
    processes: Processes = ALONE,
    multi_token_weight: float = 0.0,
) -> tuple[float, float]:
    """One update of the weights.

    Args:
        model: perhaps compiled, or wrapped in DistributedDataParallel.
        batch: sequences of tokens, (b, block_size + 1); this process's shard.
        lr_scale: multiplies the peak learning rates; see training.optim.get_lr_scale.
        multi_token_weight: of the loss of the token after the next, which is added to the loss
            whose gradient is taken; see training.optim.get_multi_token_weight.

    Returns:
        The mean loss of the next token, in nats, and the norm of the gradient before clipping.

    Raises:
        FloatingPointError: when either is not finite; the weights are as they were.
    """
    config = optimizer.config
    micro_batches = batch.chunk(config.gradient_accumulation_steps)
    loss = torch.zeros((), device=batch.device)
    for i, micro_batch in enumerate(micro_batches, start=1):
        with no_sync(model, wanted=i < len(micro_batches)):  # averaged with the last one
            logits_BTV = model(micro_batch[:, :-1])
            objective = micro_loss = next_token_loss(logits_BTV, micro_batch[:, 1:])
            if multi_token_weight and batch.size(1) > 2:
                after_next = next_token_loss(logits_BTV[:, :-1], micro_batch[:, 2:])
                objective = micro_loss + multi_token_weight * after_next
            (objective / len(micro_batches)).backward()
        loss += micro_loss.detach() / len(micro_batches)

    gradients = {name: optimizer.gradient(name) for name in optimizer.parameters}
    grad_norm = torch.nn.utils.get_total_norm(gradients.values())
    mean_loss, norm = torch.stack((loss, grad_norm)).tolist()  # both in one wait for the device
    mean_loss = processes.sum([mean_loss])[0] / processes.world_size
    if not (math.isfinite(mean_loss) and math.isfinite(norm)):
        bad = [name for name, gradient in gradients.items() if not gradient.isfinite().all()]
        model.zero_grad()
        first = f", first in {bad[0]}" if bad else ""
        raise FloatingPointError(
            f"the loss is {mean_loss} and the gradient norm {norm}{first}; no weight was updated"
        )
    if 0 < config.grad_clip < norm:
        weights = optimizer.parameters.values()
        torch.nn.utils.clip_grads_with_norm_(weights, config.grad_clip, grad_norm)
    optimizer.step(lr_scale)
    model.zero_grad()
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
    model: nn.Module,
    split: Iterator[Tensor],
    tokenizer: Tokenizer,
    device: torch.device,
    stop: StopSignal,
    processes: Processes = ALONE,
    skip: int = 0,
) -> Evaluation | None:
    """The loss over a whole split of the text, in one deterministic pass; None if stopped.

    Every token but the first is predicted once, from what precedes it in its sequence. Several
    processes take batches in turn and sum what they found.

    Args:
        skip: how many predictions at the start of each sequence do not count, because the sequence
            before made them from a longer context.

    Raises:
        FloatingPointError: when the loss is not finite.
    """
    model.eval()
    nats = tokens = characters = 0.0
    for turn, batch in enumerate(split):
        if stop:
            break
        if turn % processes.world_size != processes.rank:
            continue
        targets = batch[:, 1 + skip :]
        logits_BTV = model(batch[:, :-1].to(device))[:, skip:]
        nats += next_token_loss(logits_BTV, targets.to(device), reduction="sum").item()
        tokens += targets.numel()
        characters += tokenizer.count_characters(targets.numpy().ravel())
    model.train()
    nats, tokens, characters, stopped = processes.sum([nats, tokens, characters, bool(stop)])
    if stopped:
        return None
    if not math.isfinite(nats):
        raise FloatingPointError(f"the validation loss is {nats}")
    bits = nats / math.log(2) / max(1, characters)  # a text of bytes may have no character
    return Evaluation(nats / tokens, bits)
