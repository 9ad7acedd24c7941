"""What a trained model does on sequences of tokens: its loss, the scores of its heads, the loss
without each of them, copying, and the logit lens. Losses are in nats per token."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lens.capture import blocks_of, capture, head_replaced
from lens.metrics import SCORES, Score, induction
from model.gpt import GPT, next_token_loss

# Attention weights of a layer, or logits, that are in memory at a time: 16 MB in float32, of which
# there are a few copies while they are scored; or those of one sequence, if they are more.
NUMBERS_AT_ONCE = 2**22


def micro_batches(model: GPT, tokens_BT: Tensor) -> Iterator[Tensor]:
    """As many sequences at a time as `NUMBERS_AT_ONCE` allows."""
    T, H, V = tokens_BT.size(1), model.config.n_head, model.token_embedding.num_embeddings
    return iter(tokens_BT.split(max(1, NUMBERS_AT_ONCE // (T * max(H * T, V)))))


def losses_of(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """Return the loss of each prediction, (B, T).

    Raises:
        FloatingPointError: if the logits are not finite, as with finite but huge weights.
    """
    if not logits_BTV.isfinite().all():
        raise FloatingPointError("the model's logits are not finite (NaN or Inf)")
    return next_token_loss(logits_BTV, targets_BT, reduction="none").view(targets_BT.shape)


@torch.no_grad()
def mean_loss(model: GPT, tokens_BT: Tensor) -> float:
    """On sequences of up to block_size + 1 tokens."""
    batches = micro_batches(model, tokens_BT)
    return torch.cat([losses_of(model(b[:, :-1]), b[:, 1:]) for b in batches]).mean().item()


def score_heads(model: GPT, text_BT: Tensor, repeats_BT: Tensor) -> dict[str, Tensor]:
    """Every score of every head, (L, H) each, a mean over sequences.

    Args:
        repeats_BT: from `repeated`, for the scores that are about copying.
    """
    on_text = [score for score in SCORES if not score.repeats]
    on_repeats = [score for score in SCORES if score.repeats]
    return mean_scores(model, text_BT, on_text) | mean_scores(model, repeats_BT, on_repeats)


def mean_scores(model: GPT, tokens_BT: Tensor, scores: Sequence[Score]) -> dict[str, Tensor]:
    L, H = model.config.n_layer, model.config.n_head
    totals = {score.key: torch.zeros(L, H, dtype=torch.float64) for score in scores}
    for batch in micro_batches(model, tokens_BT):
        for i, layer in enumerate(capture(model, batch).layers):
            weights_BHTS = layer.weights_BHTS.double()
            for score in scores:
                totals[score.key][i] += score.measure(weights_BHTS).sum(0)
    return {key: total / len(tokens_BT) for key, total in totals.items()}


# --- ablation ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ablation:
    """The change in loss when the output of one head (before W_O) is replaced."""

    loss: float
    """With all heads."""

    tokens: int
    """Predictions that all of it is measured on."""

    changes: dict[str, Tensor]
    """(L, H) each. `zero`: by zero; `mean`: by its mean over the positions and sequences of this
    evaluation, the kinder cut, which takes away what the head says and not what it always adds.
    `zero_error` and `mean_error`: their standard errors over sequences."""


def mean_outputs(model: GPT, tokens_BT: Tensor) -> Tensor:
    """(L, H, D): the mean of each head's output, before W_O, over positions and over sequences
    of block_size + 1 tokens."""
    mean_LHD = torch.zeros(model.config.n_layer, model.config.n_head, model.config.head_width)
    for batch in micro_batches(model, tokens_BT):
        for i, passed in enumerate(capture(model, batch[:, :-1]).layers):
            mean_LHD[i] += passed.z_BHTD.mean(2).sum(0) / len(tokens_BT)
    return mean_LHD


@torch.no_grad()
def ablate(model: GPT, tokens_BT: Tensor) -> Ablation:
    """Replace each head in turn, on sequences of block_size + 1 tokens, two at least."""
    blocks, L, H = blocks_of(model), model.config.n_layer, model.config.n_head
    mean_LHD = mean_outputs(model, tokens_BT)
    zero_D, losses_B, changes = torch.zeros(model.config.head_width), [], []
    for batch in micro_batches(model, tokens_BT):
        seen, targets_BT = capture(model, batch[:, :-1]), batch[:, 1:]
        whole_B = losses_of(seen.logits_BTV, targets_BT).mean(1)
        change = torch.zeros(2, L, H, len(batch))
        for layer in range(L):
            for head in range(H):
                for kind, value in enumerate((zero_D, mean_LHD[layer, head])):
                    x_BTC = seen.residual[layer]  # what comes before the head is as it was
                    with head_replaced(model, layer, head, value):
                        for block in blocks[layer:]:
                            x_BTC = block(x_BTC)
                    without_B = losses_of(model.unembed(x_BTC), targets_BT).mean(1)
                    change[kind, layer, head] = without_B - whole_B
        losses_B.append(whole_B)
        changes.append(change)
    change = torch.cat(changes, dim=-1)
    zero, mean = change.mean(-1)
    zero_error, mean_error = change.std(-1) / change.size(-1) ** 0.5
    return Ablation(
        torch.cat(losses_B).mean().item(),
        tokens_BT[:, 1:].numel(),
        {"zero": zero, "zero_error": zero_error, "mean": mean, "mean_error": mean_error},
    )


# --- copying -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Copying:
    """How a model reads random strings of P different tokens, repeated once."""

    period: int

    first: float
    """Loss on the first copy, its first token not counted."""

    second: float
    """Loss on the second copy, its first token not counted: nothing says when a string ends."""

    induction_LH: Tensor
    """The induction score of each head."""


def repeated(vocab_size: int, period: int, count: int) -> Tensor:
    """(count, 2P): random strings of P different tokens, each twice, one after the other; the same
    each time."""
    generator = torch.Generator().manual_seed(0)
    strings = torch.rand(count, vocab_size, generator=generator).argsort(dim=1)[:, :period]
    return torch.cat((strings, strings), dim=1)


@torch.no_grad()
def measure_copying(model: GPT, period: int, count: int) -> Copying:
    """On `count` strings of `repeated`."""
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
    """The loss of what could be predicted after the embedding and after each layer: the final norm
    and the unembedding applied to the residual stream there (nostalgebraist 2020)."""
    totals = [0.0] * (model.config.n_layer + 1)
    for batch in micro_batches(model, tokens_BT):
        for place, x_BTC in enumerate(capture(model, batch[:, :-1]).residual):
            totals[place] += losses_of(model.unembed(x_BTC), batch[:, 1:]).sum().item()
    return [total / tokens_BT[:, 1:].numel() for total in totals]
