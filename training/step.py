"""The progress of a run, a training step, reading its result, and an evaluation."""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from common.fields import STRICT, Natural, NonNegative
from data.batches import Batches, TaskBatches, TextBatches
from data.config import DataConfig
from data.counting import mixed_losses
from model.config import ModelConfig
from model.gpt import GPT, next_token_loss
from training.config import TrainConfig
from training.optim import Optimizer, gradient, make_optimizer
from training.processes import Processes
from training.runtime import Machine, StopSignal


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


def make_model(
    config: ModelConfig, train: TrainConfig, vocab_size: int, machine: Machine
) -> tuple[GPT, Optimizer]:
    """Make the model, with weights drawn from the seed, and its optimizer."""
    torch.manual_seed(train.seed)
    model = GPT(config, vocab_size).to(machine.device)
    model.compute_dtype = precision = getattr(torch, machine.precision)
    if train.compile:
        # In compiled code, the gradients of embeddings are summed in an arbitrary order, so that
        # runs do not repeat bitwise.
        model.embed = torch.compiler.disable(model.embed)  # type: ignore[method-assign]
        model.compile()
    return model, make_optimizer(model, train, precision)


def train_step(
    model: nn.Module,
    optimizer: Optimizer,
    batch: Tensor,
    config: TrainConfig,
    lr_scale: float,
    multi_token_weight: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Compute the loss and its gradient, and update the weights.

    Args:
        model: may be compiled or wrapped in DistributedDataParallel.
        batch: this process's shard of the sequences, (b, block_size + 1), on the CPU.
        lr_scale: multiplies the peak learning rates; see training.optim.get_lr_scale.
        multi_token_weight: weight of the loss for the token after the next; see
            training.optim.get_multi_token_weight.

    Returns:
        The mean loss for the next token, in nats, and the norm of the gradient before clipping,
        both on the device. The gradient is kept until the next step.
    """
    model.zero_grad()
    device = next(model.parameters()).device
    batch = batch.pin_memory() if device.type == "cuda" else batch  # copied without waiting
    micro_batches = batch.to(device, non_blocking=True).chunk(config.gradient_accumulation_steps)
    total = torch.zeros((), device=device)
    for i, micro_batch in enumerate(micro_batches, start=1):
        if isinstance(model, DistributedDataParallel):  # average gradients only after the last one
            model.require_backward_grad_sync = i == len(micro_batches)
        logits_BTV = model(micro_batch[:, :-1])
        loss = next_token_loss(logits_BTV, micro_batch[:, 1:])
        total += loss.detach() / len(micro_batches)
        if multi_token_weight and micro_batch.size(1) > 2:
            after_next = next_token_loss(logits_BTV[:, :-1], micro_batch[:, 2:])
            loss = loss + multi_token_weight * after_next
        (loss / len(micro_batches)).backward()

    norm = torch.nn.utils.get_total_norm([gradient(*item) for item in optimizer.weights.items()])
    if config.grad_clip:
        # A norm that is NaN clips nothing, so that the gradient still shows which weight caused it.
        torch.nn.utils.clip_grads_with_norm_(
            optimizer.weights.values(), config.grad_clip, norm.nan_to_num(nan=0.0)
        )
    optimizer.step(lr_scale)
    return total, norm


def read_results(
    pending: Sequence[tuple[Tensor, Tensor]],
    step: int,
    optimizer: Optimizer,
    processes: Processes,
    stop: StopSignal,
) -> tuple[float, float, bool]:
    """Read the results of the last steps, which waits for a GPU.

    Args:
        pending: loss and gradient norm of each step, on the device.
        step: number of the last step.

    Returns:
        Loss and gradient norm of the last step, averaged over the processes, and whether any
        process was told to stop.

    Raises:
        FloatingPointError: naming the first step that was not finite, and, if only one step was
            pending, the first weight whose gradient is not.
    """
    results = torch.stack([*itertools.chain(*pending)]).tolist()
    *means, signal = processes.mean(*results, stop.number)
    for i, (loss, norm) in enumerate(zip(means[::2], means[1::2], strict=True)):
        if not math.isfinite(loss + norm):
            bad = [
                f", first in {name}"
                for name, weight in optimizer.weights.items()
                if len(pending) == 1 and not gradient(name, weight).isfinite().all()
            ]
            number = step - len(pending) + 1 + i
            raise FloatingPointError(
                f"at step {number}: loss {loss}, gradient norm {norm}{''.join(bad[:1])}"
            )
    return loss, norm, signal > 0


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The loss over a split."""

    nats: float
    tokens: float
    characters: float

    surprisal: Tensor
    """The loss of each token that this process predicted, in nats, on the CPU."""

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

    @property
    def in_percent(self) -> str:
        return "" if self.accuracy is None else f"  accuracy {self.accuracy:.1%}"

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
    stop: StopSignal = StopSignal(),  # noqa: B008
) -> Evaluation | None:
    """Return the loss over the sequences of a split, in one deterministic pass.

    Each token is predicted from the earlier tokens of its sequence. Several processes take
    alternating batches and average their sums. If any process is told to stop, there is no result.
    """
    model.eval()
    device = next(model.parameters()).device
    surprisals, characters, right, answers = [torch.empty(0)], 0.0, 0.0, 0.0
    for batch in itertools.islice(split, processes.rank, None, processes.world_size):
        if stop.number:
            break
        targets = batch[:, 1:]
        logits_BTV = model(batch[:, :-1].to(device))
        surprisals.append(next_token_loss(logits_BTV, targets.to(device), reduction="none").cpu())
        characters += batches.tokenizer.characters[targets].sum().item()
        if isinstance(batches, TaskBatches):
            is_answer = batches.answers(batch)[:, 1:]
            answers += is_answer.sum().item()
            right += (logits_BTV.argmax(-1).cpu() == targets)[is_answer].sum().item()
    model.train()
    surprisal = torch.cat(surprisals)
    nats = surprisal.sum(dtype=torch.float64).item()
    sums = nats, len(surprisal), characters, right, answers, stop.number
    nats, tokens, characters, right, answers, signal = processes.mean(*sums)
    result = Evaluation(nats, tokens, characters, surprisal, right, answers)
    return None if signal else result


def print_losses(model: GPT, batches: Batches, train: TrainConfig, data: DataConfig) -> None:
    """Print the loss over the whole validation split, and over the test split if there is one; of a
    text, also the loss of counting, and of both mixed; of a task, also the accuracy, and both on
    training sequences.

    Raises:
        FloatingPointError: if a loss is not finite.
    """
    splits = {"validation": batches.validation_batches}
    if isinstance(batches, TaskBatches):
        splits["training"] = batches.training_batches
    if data.test_fraction:
        splits["test"] = batches.test_batches
    for name, split in splits.items():
        result = evaluate(model, split(train.micro_batch_size), batches, Processes())
        assert result, "only a request to stop leaves no result"
        if not math.isfinite(result.loss):
            raise FloatingPointError(f"the {name} loss is {result.loss}")
        nats = {"model": result.nats}
        if isinstance(batches, TextBatches) and data.counting:
            tokens = batches.val_tokens if name == "validation" else batches.test_tokens
            counted = batches.counting.read(tokens)[0][1:]
            mixed = mixed_losses(result.surprisal.double().numpy(), counted)
            nats |= {[*batches.counting.baselines][-1]: counted.sum(), "both mixed": mixed.sum()}
        for row, total in nats.items():
            loss = dataclasses.replace(result, nats=float(total))
            print(f"{name:10}  {row:10}  {loss.in_units(data.unit)}{result.in_percent}")
