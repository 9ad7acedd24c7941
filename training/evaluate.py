"""The loss of a model over a split."""

import dataclasses
import itertools
import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from configs.config import Config
from data.batches import Batches
from model.gpt import GPT, next_token_loss
from training.machine import Processes, StopSignal


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

    Args:
        model: in eval mode, so that nothing is dropped.
    """
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
        if batches.task:
            is_answer = torch.from_numpy(batches.task.answers(batch.numpy()))[:, 1:]
            is_right = (logits_BTV.argmax(-1).cpu() == targets) & is_answer
            right, answers = right + int(is_right.sum()), answers + int(is_answer.sum())
    if processes.max(stop.number if stop else 0):
        return None
    surprisal = torch.cat(surprisals)
    nats = surprisal.sum(dtype=torch.float64).item()
    means = processes.mean(nats, len(surprisal), characters, right, answers)
    return Evaluation(surprisal, *means)


def evaluate_splits(
    model: GPT, batches: Batches, config: Config, processes: Processes, stop: StopSignal
) -> dict[str, Evaluation] | None:
    """Evaluate the model on each split that is evaluated in training; return None if training is
    told to stop meanwhile, so that the resumed run evaluates again."""
    evaluations = {}
    batch_size = config.train.micro_batch_size // processes.world_size
    for name in batches.evaluated:
        split = batches.split(name, batch_size, config.train.eval_tokens)
        evaluation = evaluate(model, split, batches, processes, stop)
        if evaluation is None:
            return None
        evaluations[name] = evaluation
    return evaluations
