"""What each head of a trained model does, and what the model loses without it."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from lens.capture import blocks_of, capture, each_layer, head_replaced
from lens.metrics import SCORES
from model.gpt import GPT, next_token_loss

# Attention weights of a layer, or logits, that are in memory at a time: 16 MB in float32, of which
# there are a few copies while they are scored; or those of one window, if they are more.
NUMBERS_AT_ONCE = 2**22


def pieces(model: GPT, windows_BT: Tensor) -> Iterator[Tensor]:
    """As many windows at a time as `NUMBERS_AT_ONCE` allows."""
    T, H, V = windows_BT.size(1), model.config.n_head, model.token_embedding.num_embeddings
    return iter(windows_BT.split(max(1, NUMBERS_AT_ONCE // (T * max(H * T, V)))))


@torch.no_grad()
def mean_loss(model: GPT, windows_BT: Tensor) -> float:
    """On windows of block_size + 1 tokens, in nats per token."""
    losses = [losses_of(model(piece[:, :-1]), piece[:, 1:]) for piece in pieces(model, windows_BT)]
    return torch.cat(losses).mean().item()


def repeated(vocab_size: int, period: int, count: int, seed: int = 0) -> Tensor:
    """(count, 2P): random strings of P different tokens, each twice, one after the other.

    Raises:
        ValueError: when there are not P different tokens.
    """
    if not 2 <= period <= vocab_size:
        raise ValueError(
            f"a period of {period} different tokens needs 2 to {vocab_size}, as many as are known"
        )
    generator = torch.Generator().manual_seed(seed)
    strings = torch.rand(count, vocab_size, generator=generator).argsort(dim=1)[:, :period]
    return torch.cat((strings, strings), dim=1)


@torch.no_grad()
def score_heads(model: GPT, text_BT: Tensor, repeats_BT: Tensor) -> dict[str, Tensor]:
    """Every score of every head, (L, H) each, a mean over the windows.

    Args:
        text_BT: windows of text, without the token that each predicts last.
        repeats_BT: from `repeated`, for the scores that are about copying.
    """
    L, H = model.config.n_layer, model.config.n_head
    totals = {score.key: torch.zeros(L, H, dtype=torch.float64) for score in SCORES}
    for windows, repeats in ((text_BT, False), (repeats_BT, True)):

        def add(layer: int, weights_BHTS: Tensor, repeats: bool = repeats) -> None:
            for score in SCORES:
                if score.repeats == repeats:
                    totals[score.key][layer] += score.measure(weights_BHTS.double()).sum(0).cpu()

        with each_layer(model, add):
            for piece in pieces(model, windows):
                model(piece)
        for score in SCORES:
            if score.repeats == repeats:
                totals[score.key] /= len(windows)
    return totals


@dataclass(frozen=True)
class Copying:
    """How a model reads random strings of P different tokens, repeated once."""

    period: int

    first: float
    """Loss on the first copy, in nats per token, its first token not counted."""

    second: float
    """Loss on the second copy, its first token not counted: nothing says when a string ends."""

    induction_LH: Tensor
    """The induction score of each head."""


@torch.no_grad()
def measure_copying(model: GPT, period: int, count: int = 64, seed: int = 0) -> Copying:
    """Raises: ValueError, as `repeated` does."""
    V, device = model.token_embedding.num_embeddings, model.token_embedding.weight.device
    windows = repeated(V, period, count, seed).to(device)
    induction = next(score for score in SCORES if score.key == "induction")
    total_LH = torch.zeros(model.config.n_layer, model.config.n_head, dtype=torch.float64)

    def add(layer: int, weights_BHTS: Tensor) -> None:
        total_LH[layer] += induction.measure(weights_BHTS.double()).sum(0).cpu()

    losses = []
    with each_layer(model, add):
        for piece in pieces(model, windows):
            losses.append(losses_of(model(piece)[:, :-1], piece[:, 1:]))
    loss_T = torch.cat(losses).mean(0)
    first, second = loss_T[: period - 1].mean(), loss_T[period:].mean()
    return Copying(period, first.item(), second.item(), total_LH / count)


def losses_of(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """(B, T): the loss of each prediction, in nats."""
    return next_token_loss(logits_BTV, targets_BT, reduction="none").view(targets_BT.shape)


@dataclass(frozen=True)
class Ablation:
    """The change in loss, in nats per token, when one head's output (before W_O) is replaced."""

    loss: float
    """With all heads."""

    tokens: int
    """Predictions that all of it is measured on."""

    zero_LH: Tensor
    """By zero."""

    zero_error_LH: Tensor
    """Standard error over windows."""

    mean_LH: Tensor
    """By its mean over the positions and windows of this evaluation; the kinder cut, for it takes
    away what the head says and not what it always adds."""

    mean_error_LH: Tensor


@torch.no_grad()
def ablate(model: GPT, windows_BT: Tensor) -> Ablation:
    """Take each head away in turn, on windows of block_size + 1 tokens, two at least."""
    blocks, L, H = blocks_of(model), model.config.n_layer, model.config.n_head
    reading, targets = windows_BT[:, :-1], windows_BT[:, 1:]
    mean_LHD = torch.zeros(())
    for piece in pieces(model, reading):
        of_layers = [layer.z_BHTD.mean(2).sum(0) for layer in capture(model, piece).layers]
        mean_LHD = mean_LHD + torch.stack(of_layers).cpu() / len(windows_BT)
    losses, changes = [], []  # a window each; (kind, L, H) of a window each
    for piece, truth in zip(pieces(model, reading), pieces(model, targets), strict=True):
        seen = capture(model, piece)
        whole_B = losses_of(seen.logits_BTV, truth).mean(1)
        change = torch.zeros(2, L, H, len(piece))
        for layer in range(L):
            for head in range(H):
                values: list[Tensor | float] = [0.0, mean_LHD[layer, head].to(piece.device)]
                for kind, value in enumerate(values):
                    with head_replaced(model, layer, head, value):
                        x_BTC = seen.stream[layer]  # what comes before the head is as it was
                        for block in blocks[layer:]:
                            x_BTC = block(x_BTC)
                    without_B = losses_of(model.unembed(x_BTC), truth).mean(1)
                    change[kind, layer, head] = (without_B - whole_B).cpu()
        losses.append(whole_B)
        changes.append(change)
    change = torch.cat(changes, dim=-1)
    error = change.std(-1) / change.size(-1) ** 0.5
    mean = change.mean(-1)
    loss = torch.cat(losses).mean().item()
    return Ablation(loss, targets.numel(), mean[0], error[0], mean[1], error[1])


@torch.no_grad()
def logit_lens(model: GPT, windows_BT: Tensor) -> list[float]:
    """The loss, in nats per token, of what could be said after the embedding and after each layer:
    the final norm and the head applied to the stream there (nostalgebraist 2020)."""
    totals = [0.0] * (model.config.n_layer + 1)
    for piece in pieces(model, windows_BT):
        for place, x_BTC in enumerate(capture(model, piece[:, :-1]).stream):
            totals[place] += losses_of(model.unembed(x_BTC), piece[:, 1:]).sum().item()
    return [total / windows_BT[:, 1:].numel() for total in totals]
