"""A training step, an evaluation, and the progress of a run that they advance."""

import dataclasses
import itertools
import math
from collections.abc import Iterator

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from configs.config import STRICT, Config, Natural, NonNegative, TrainConfig
from data.batches import Batches
from model.gpt import GPT, next_token_loss
from training.machine import Machine, Processes, StopSignal
from training.optim import Optimizer, gradient_of, make_optimizer


@dataclass(config=STRICT)
class TrainState:
    """The progress of a run."""

    step: Natural = 0
    """Number of training steps so far, which is the index of the next one."""

    seconds: NonNegative = 0.0
    """Wall-clock time of the loop, including evaluations, over all sessions."""

    train_loss: NonNegative | None = None
    """Loss of the last step that was read, in nats per token."""

    last_eval_step: Natural = 0
    """Step of the last evaluation; 0 before the first."""

    val_loss: NonNegative | None = None
    """Loss of the last evaluation, in nats per token."""

    best_val_loss: NonNegative | None = None
    """Lowest loss of all evaluations."""

    def record(self, val_loss: float) -> bool:
        """Record an evaluation, and return whether it is the best so far.

        Raises:
            FloatingPointError: if the loss is not finite.
        """
        if not math.isfinite(val_loss):
            raise FloatingPointError(f"at step {self.step}: validation loss {val_loss}")
        self.last_eval_step, self.val_loss = self.step, val_loss
        best = self.best_val_loss is None or val_loss < self.best_val_loss
        if best:
            self.best_val_loss = val_loss
        return best


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
    return total, torch.nn.utils.get_total_norm([*map(gradient_of, weights.values())])


def update_weights(optimizer: Optimizer, norm: Tensor, config: TrainConfig, step: int) -> None:
    """Clip the gradients, whose norm is given, and let the optimizer use them."""
    if config.grad_clip:
        weights = optimizer.weights.values()
        torch.nn.utils.clip_grads_with_norm_(weights, config.grad_clip, norm)
    optimizer.step(step)


def train_step(
    model: nn.Module, optimizer: Optimizer, batch: Tensor, config: TrainConfig, step: int
) -> tuple[Tensor, Tensor]:
    """Do one whole step, as a benchmark does; the loop of train.py reads the result before the
    update. See `compute_gradients`."""
    loss, norm = compute_gradients(model, optimizer.weights, batch, config)
    update_weights(optimizer, norm, config, step)
    return loss, norm


def check_results(
    losses: list[float], norms: list[float], step: int, weights: dict[str, nn.Parameter]
) -> None:
    """Check the results of the last steps before the weights are updated with the last gradient.

    Args:
        step: the number of the last step.

    Raises:
        FloatingPointError: naming the first step that is not finite and, if it is the last one, the
            first weight whose gradient is not finite.
    """
    first = step - len(losses) + 1
    for i, (loss, norm) in enumerate(zip(losses, norms, strict=True), start=first):
        if not math.isfinite(loss + norm):
            bad = [n for n, w in weights.items() if not gradient_of(w).isfinite().all()]
            named = f", first in {bad[0]}" if bad and i == step else ""
            raise FloatingPointError(f"at step {i}: loss {loss}, gradient norm {norm}{named}")


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The loss over a split."""

    surprisal: Tensor
    """The loss of each token that this process predicted, in nats, on the CPU."""

    nats: float
    tokens: float
    characters: float

    right: float = 0.0
    """Number of a task's answers that have the highest logit."""

    answers: float = 0.0

    @property
    def accuracy(self) -> float | None:
        """The fraction of a task's answers that are right, if there are any."""
        return self.right / self.answers if self.answers else None

    @property
    def loss(self) -> float:
        """Nats per token."""
        return self.nats / self.tokens

    @property
    def bits_per_char(self) -> float:
        return self.nats / math.log(2) / (self.characters or 1)  # bytes may have no character

    def in_units(self, unit: str) -> str:
        """Return both losses with their units, and for byte tokens also bits per byte."""
        per_byte = f"{self.loss / math.log(2):.3f} bits/byte  " if unit == "byte" else ""
        return f"{self.loss:.4f} nats/{unit}  {per_byte}{self.bits_per_char:.3f} bits/char"


@torch.no_grad()
def evaluate(
    model: nn.Module,
    split: Iterator[Tensor],
    batches: Batches,
    processes: Processes,
    stop: StopSignal | None = None,
) -> Evaluation | None:
    """Return the loss over the sequences of a split, in one deterministic pass.

    Each token is predicted from the earlier tokens of its sequence. Several processes take
    alternating batches and average their sums. If any process is told to stop, the result is None.
    """
    model.eval()
    device = next(model.parameters()).device
    surprisals = [torch.empty(0)]
    characters = right = answers = 0
    for batch in itertools.islice(split, processes.rank, None, processes.world_size):
        if stop and stop.number:
            break
        targets = batch[:, 1:]
        # Not compiled, if the model is: the last sequences have another shape.
        logits_BTV = model.forward(batch[:, :-1].to(device))
        surprisals.append(next_token_loss(logits_BTV, targets.to(device), reduction="none").cpu())
        in_utf8 = int(batches.tokenizer.characters[targets].sum())
        characters += in_utf8 if batches.corpus.is_utf8 else targets.numel()
        is_answer = batches.answers(batch)[:, 1:]
        if is_answer.any():
            is_right = (logits_BTV.argmax(-1).cpu() == targets) & is_answer
            right, answers = right + int(is_right.sum()), answers + int(is_answer.sum())
    model.train()
    if processes.max(stop.number if stop else 0):
        return None
    surprisal = torch.cat(surprisals)
    nats = surprisal.sum(dtype=torch.float64).item()
    means = processes.mean(nats, len(surprisal), characters, right, answers)
    return Evaluation(surprisal, *means)
