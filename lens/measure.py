"""What a trained model does on sequences of tokens: its loss, the scores of its heads, the loss
with each of them ablated, copying, and the logit lens. Losses are in nats per token."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from common.errors import UserError
from lens.capture import capture, head_replaced
from lens.metrics import SCORES, induction
from model.gpt import GPT, next_token_loss

# Attention weights of a layer, or logits, that are in memory at a time: 16 MB in float32, of which
# there are a few copies while they are scored; or those of one sequence, if they are more.
NUMBERS_AT_ONCE = 2**22


def micro_batches(model: GPT, tokens_BT: Tensor) -> Iterator[Tensor]:
    """Split into as many sequences at a time as `NUMBERS_AT_ONCE` allows."""
    T, H, V = tokens_BT.size(1), model.config.n_head, model.token_embedding.num_embeddings
    return iter(tokens_BT.split(max(1, NUMBERS_AT_ONCE // (T * max(H * T, V)))))


def losses_of(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """Return the loss of each prediction, (B, T).

    Raises:
        FloatingPointError: when one is not finite.
    """
    losses = next_token_loss(logits_BTV, targets_BT, reduction="none").view(targets_BT.shape)
    if not losses.isfinite().all():
        raise FloatingPointError("a loss is not finite (NaN or Inf)")
    return losses


@torch.no_grad()
def sequence_losses(model: GPT, tokens_BT: Tensor) -> Tensor:
    """Return the mean loss of each of some sequences of up to block_size + 1 tokens, (B,)."""
    batches = micro_batches(model, tokens_BT)
    return torch.cat([losses_of(model(b[:, :-1]), b[:, 1:]).mean(1) for b in batches])


def mean_loss(model: GPT, tokens_BT: Tensor) -> float:
    """Return the mean loss on sequences of up to block_size + 1 tokens."""
    return sequence_losses(model, tokens_BT).mean().item()


@torch.no_grad()
def score_heads(model: GPT, text_BT: Tensor, repeats_BT: Tensor) -> dict[str, Tensor]:
    """Return every score of every head, (L, H) each, a mean over sequences.

    Args:
        repeats_BT: from `repeated`, for the scores that are about copying.
    """
    scores_LH = {}
    for score in SCORES:
        scores_LH[score.key] = torch.zeros(model.config.n_layer, model.config.n_head).double()
    for tokens_BT, repeats in ((text_BT, False), (repeats_BT, True)):
        for batch in micro_batches(model, tokens_BT):
            for i, layer in enumerate(capture(model, batch).layers):
                weights_BHTS = layer.weights_BHTS.double()
                for score in SCORES:
                    if score.repeats == repeats:
                        total_H = score.measure(weights_BHTS).sum(0)
                        scores_LH[score.key][i] += total_H / len(tokens_BT)
    return scores_LH


# --- ablation ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ablation:
    """The change in loss when the output of one head (before W_O) is replaced."""

    loss: float
    """With all heads."""

    changes: dict[str, Tensor]
    """(L, H) each. `zero`: by zero; `mean`: by its mean over the positions and sequences of this
    evaluation, which removes what depends on the text and keeps what the head always adds.
    `zero_error` and `mean_error`: their standard errors over sequences."""


def mean_outputs(model: GPT, tokens_BT: Tensor) -> Tensor:
    """Return the mean of each head's output, before W_O, (L, H, D), over positions and over
    sequences of block_size + 1 tokens."""
    mean_LHD = torch.zeros(model.config.n_layer, model.config.n_head, model.config.head_width)
    for batch in micro_batches(model, tokens_BT):
        for i, layer in enumerate(capture(model, batch[:, :-1]).layers):
            mean_LHD[i] += layer.z_BHTD.mean(2).sum(0) / len(tokens_BT)
    return mean_LHD


def ablate(model: GPT, tokens_BT: Tensor) -> Ablation:
    """Replace each head, one at a time, on two or more sequences of block_size + 1 tokens."""
    whole_B, mean_LHD = sequence_losses(model, tokens_BT), mean_outputs(model, tokens_BT)
    changes = {}
    for kind, values_LHD in (("zero", torch.zeros_like(mean_LHD)), ("mean", mean_LHD)):
        change_LHB = torch.empty(*mean_LHD.shape[:2], len(tokens_BT))
        for layer, values_HD in enumerate(values_LHD):
            for head, value_D in enumerate(values_HD):
                with head_replaced(model, layer, head, value_D):
                    change_LHB[layer, head] = sequence_losses(model, tokens_BT) - whole_B
        changes[kind] = change_LHB.mean(-1)
        changes[f"{kind}_error"] = change_LHB.std(-1) / len(tokens_BT) ** 0.5
    return Ablation(whole_B.mean().item(), changes)


# --- copying -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Copying:
    """How a model reads random strings of P distinct tokens, repeated once."""

    period: int

    first: float
    """Loss on the first copy, its first token not counted."""

    second: float
    """Loss on the second copy, its first token not counted: nothing says when a string ends."""

    induction_LH: Tensor
    """The induction score of each head."""


def repeated(vocab_size: int, period: int, count: int) -> Tensor:
    """Draw random strings of P distinct tokens, each twice, one after the other, (count, 2P); the
    same each time."""
    generator = torch.Generator().manual_seed(0)
    strings = torch.rand(count, vocab_size, generator=generator).argsort(dim=1)[:, :period]
    return torch.cat((strings, strings), dim=1)


@torch.no_grad()
def measure_copying(model: GPT, period: int, count: int) -> Copying:
    """Measure losses and induction scores on `count` strings of `repeated`."""
    tokens_BT = repeated(model.token_embedding.num_embeddings, period, count)
    losses, induction_LH = [], torch.zeros(())
    for batch in micro_batches(model, tokens_BT):
        seen = capture(model, batch)
        losses.append(losses_of(seen.logits_BTV[:, :-1], batch[:, 1:]))
        scores = [induction(layer.weights_BHTS.double()).sum(0) for layer in seen.layers]
        induction_LH = induction_LH + torch.stack(scores) / count
    loss_T = torch.cat(losses).mean(0)
    first, second = loss_T[: period - 1].mean(), loss_T[period:].mean()
    return Copying(period, first.item(), second.item(), induction_LH)


@torch.no_grad()
def logit_lens(model: GPT, tokens_BT: Tensor) -> list[float]:
    """Return the loss of what could be predicted after the embedding and after each layer: the
    final norm and the unembedding applied to the residual stream there (nostalgebraist 2020).

    Raises:
        UserError: when the model's logits are not those of the last layer.
    """
    totals = [0.0] * (model.config.n_layer + 1)
    for batch in micro_batches(model, tokens_BT):
        seen = capture(model, batch[:, :-1])
        if not torch.allclose(model.unembed(seen.residual[-1]), seen.logits_BTV):
            raise UserError("GPT.unembed must give the logits that GPT.forward returns")
        for place, x_BTC in enumerate(seen.residual):
            totals[place] += losses_of(model.unembed(x_BTC), batch[:, 1:]).sum().item()
    return [total / tokens_BT[:, 1:].numel() for total in totals]
