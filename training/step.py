"""The progress of a run, a training step, an evaluation, and the size of a run."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from common.fields import STRICT, Natural, NonNegative
from data.tokenizer import Tokenizer
from model.config import ModelConfig
from model.gpt import GPT, next_token_loss
from training.config import TrainConfig
from training.optim import Optimizer, gradient
from training.processes import Processes


@dataclass(config=STRICT)
class TrainState:
    """The progress of a run."""

    step: Natural = 0
    """Number of training steps so far, including the current one, so that an error names it."""

    seconds: NonNegative = 0.0
    """Wall-clock time of the loop, including evaluations, over all sessions."""

    train_loss: NonNegative | None = None
    """Loss of the last step that was waited for, in nats per token."""

    last_eval_step: Natural = 0
    """Step of the last evaluation; 0 before the first."""

    val_loss: NonNegative | None = None
    """Loss of the last evaluation, in nats per token."""

    best_val_loss: NonNegative | None = None
    """Lowest loss of all evaluations."""

    def evaluation_due(self, config: TrainConfig) -> bool:
        """Return whether to evaluate before the next step: at intervals and at the end, but not at
        step 0, where the loss is near ln V."""
        due = self.step % config.eval_every == 0 or self.step >= config.max_steps
        return due and self.step > self.last_eval_step

    def record(self, val_loss: float) -> bool:
        """Record an evaluation, and return whether it is the best so far."""
        self.last_eval_step, self.val_loss = self.step, val_loss
        best = self.best_val_loss is None or val_loss < self.best_val_loss
        if best:
            self.best_val_loss = val_loss
        return best

    def ended(self, config: TrainConfig) -> bool:
        """Return whether training has reached its last step or its target loss."""
        reached = self.val_loss is not None and self.val_loss <= config.target_loss
        return reached or self.step >= config.max_steps


def train_step(
    model: nn.Module,
    optimizer: Optimizer,
    batch: Tensor,
    config: TrainConfig,
    lr_scale: float,
    multi_token_weight: float = 0.0,
    teachers: Sequence[GPT] = (),
    check: Callable[[Tensor, Tensor], Any] = lambda loss, grad_norm: None,
) -> tuple[Tensor, Tensor]:
    """Compute the loss and its gradient, and update the weights.

    Args:
        model: may be compiled or wrapped in DistributedDataParallel.
        batch: this process's shard of the sequences, (b, block_size + 1).
        lr_scale: multiplies the peak learning rates; see training.optim.get_lr_scale.
        multi_token_weight: weight of the loss for the token after the next; see
            training.optim.get_multi_token_weight.
        teachers: models whose mean probabilities are the targets.
        check: called with the result before the update, which does not happen if it raises. It can
            return a boolean tensor, which is not waited for: if false, the weights do not change,
            but the optimizer's state does.

    Returns:
        The mean loss for the next token, in nats, and the norm of the gradient before clipping,
        both on the device.
    """
    micro_batches = batch.chunk(config.gradient_accumulation_steps)
    total = torch.zeros((), device=batch.device)
    for i, micro_batch in enumerate(micro_batches, start=1):
        if isinstance(model, DistributedDataParallel):  # average gradients only after the last one
            model.require_backward_grad_sync = i == len(micro_batches)
        logits_BTV = model(micro_batch[:, :-1])
        objective = next_token_loss(logits_BTV, micro_batch[:, 1:])
        total += objective.detach() / len(micro_batches)
        if teachers:
            with torch.no_grad():
                taught = [teacher(micro_batch[:, :-1]).float().softmax(-1) for teacher in teachers]
            objective = next_token_loss(logits_BTV, torch.stack(taught).mean(0))
        if multi_token_weight:
            after_next = next_token_loss(logits_BTV[:, :-1], micro_batch[:, 2:])
            objective = objective + multi_token_weight * after_next
        (objective / len(micro_batches)).backward()

    weights = list(optimizer.weights.values())
    norm = torch.nn.utils.get_total_norm([gradient(*item) for item in optimizer.weights.items()])
    update = check(total, norm)
    before = [] if update is None else [weight.detach().clone() for weight in weights]
    if config.grad_clip and (before or norm > config.grad_clip):
        torch.nn.utils.clip_grads_with_norm_(weights, config.grad_clip, norm)
    optimizer.step(lr_scale)
    for weight, old in zip(weights, before, strict=False):
        weight.data.copy_(torch.where(update, weight, old))
    model.zero_grad()
    return total, norm


@dataclass(frozen=True)
class Evaluation:
    """The loss over a split."""

    loss: float
    """Nats per token."""

    bits_per_char: float

    tokens: int
    """Number of tokens that were predicted."""

    def in_units(self, unit: str) -> str:
        """Return both losses with their units, and for byte tokens also bits per byte."""
        per_byte = f"{self.loss / math.log(2):.3f} bits/byte  " if unit == "byte" else ""
        return f"{self.loss:.4f} nats/{unit}  {per_byte}{self.bits_per_char:.3f} bits/char"


@torch.no_grad()
def evaluate(
    model: nn.Module,
    split: Iterator[Tensor],
    tokenizer: Tokenizer,
    device: str,
    processes: Processes,
) -> Evaluation:
    """Return the loss over the sequences of a split, in one deterministic pass.

    Each token is predicted from the earlier tokens of its sequence. Several processes take
    alternating batches and sum their losses.

    Raises:
        FloatingPointError: if the loss is not finite.
    """
    model.eval()
    nats = tokens = characters = 0.0
    for batch in itertools.islice(split, processes.rank, None, processes.world_size):
        targets = batch[:, 1:]
        logits_BTV = model(batch[:, :-1].to(device))
        nats += next_token_loss(logits_BTV, targets.to(device), reduction="sum").item()
        tokens += targets.numel()
        characters += tokenizer.characters[targets].sum().item()
    model.train()
    nats, tokens, characters = processes.all_reduce(nats, tokens, characters)
    if not math.isfinite(nats):
        raise FloatingPointError(f"the validation loss is {nats}")
    bits = nats / math.log(2) / max(1, characters)  # arbitrary bytes may have no character
    # If the evaluation was stopped, there may be no tokens.
    return Evaluation(nats / max(1, tokens), bits, int(tokens))


def flops_per_token(model: GPT) -> int:
    """Return the FLOPs per token, forward and backward (Chowdhery et al. 2022, appendix B).

    They are 6 for each weight of the matrices, except the embeddings, and 12 L C T for the two
    matmuls of attention, including masked positions.
    """
    config = model.config
    matrices = sum(p.numel() for p in model.blocks.parameters() if p.dim() == 2)
    head = config.n_embd * model.token_embedding.num_embeddings
    return 6 * (matrices + head) + 12 * config.n_layer * config.n_embd * config.block_size


def describe_size(config: ModelConfig, train: TrainConfig, vocab_size: int) -> str:
    """Return the text for `--dry_run`, computed from a model on the meta device."""
    with torch.device("meta"):
        model = GPT(config, vocab_size)
        batch = torch.zeros(train.micro_batch_size, config.block_size + 1, dtype=torch.long)
    kept: list[Tensor] = []  # for the backward pass; also weights
    with torch.autograd.graph.saved_tensors_hooks(kept.append, lambda tensor: tensor):
        next_token_loss(model(batch[:, :-1]), batch[:, 1:])
    storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in kept}
    # For each weight, a gradient and at most two numbers of optimizer state.
    memory = 12 * model.num_parameters() + sum(storages.values())
    step = flops_per_token(model) * train.batch_size * config.block_size
    # 250 MB for Python and PyTorch.
    return (
        f"parameters  {model.num_parameters():,}\n"
        f"memory      about {memory / 1e6 + 250:,.0f} MB\n"
        f"compute     {step / 1e9:,.1f} GFLOP per step"
    )
