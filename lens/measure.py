"""Measurements of a trained model on sequences of tokens: loss, scores of heads, ablation, copying,
and the logit lens. Losses are in nats per token."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from common.errors import UserError
from common.progress import progress
from data.tasks.task import Task
from lens.capture import Pass, blocks_of, capture, heads_given
from lens.metrics import MATCH, SCORES
from model.gpt import GPT, next_token_loss

# Maximum number of attention weights of a layer, or logits, in memory at a time, except for a
# single sequence. In float32 they are 16 MB, and scoring makes a few copies.
NUMBERS_AT_ONCE = 2**22
REPEATS = 64  # random strings that copying is measured on


def micro_batches(model: GPT, tokens_BT: Tensor) -> Sequence[Tensor]:
    """Split the sequences into micro-batches that are as large as `NUMBERS_AT_ONCE` allows."""
    T, H, V = tokens_BT.size(1), model.config.n_head, model.token_embedding.num_embeddings
    return tokens_BT.split(max(1, NUMBERS_AT_ONCE // (T * max(H * T, V))))


def losses_of(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """Return the loss of each prediction, (B, T)."""
    return next_token_loss(logits_BTV, targets_BT, reduction="none").view(targets_BT.shape)


@torch.no_grad()
def token_losses(model: GPT, tokens_BT: Tensor) -> Tensor:
    """Return the loss of each token but the first, (B, T - 1), of sequences of up to
    block_size + 1 tokens."""
    batches = micro_batches(model, tokens_BT)
    return torch.cat([losses_of(model(batch[:, :-1]), batch[:, 1:]) for batch in batches])


def mean_loss(model: GPT, tokens_BT: Tensor) -> float:
    """Return the mean loss on sequences of up to block_size + 1 tokens."""
    return token_losses(model, tokens_BT).mean().item()


@torch.no_grad()
def score_heads(model: GPT, tokens_BT: Tensor, repeats: bool) -> dict[str, Tensor]:
    """Return the scores of every head, (L, H) each, averaged over sequences.

    Args:
        repeats: return the scores on repeated strings, for tokens from `repeated`, instead of the
            scores on text.
    """
    batches = micro_batches(model, tokens_BT)
    return average((scores_of(capture(model, batch), repeats) for batch in batches), tokens_BT)


def average(sums: Iterable[dict[str, Tensor]], tokens_BT: Tensor) -> dict[str, Tensor]:
    """Return the mean over sequences, from sums over those of each micro-batch."""
    means: dict[str, Tensor] = {}
    for each in sums:
        for key, total in each.items():
            means[key] = means.get(key, torch.zeros(())) + total / len(tokens_BT)
    return means


def scores_of(seen: Pass, repeats: bool) -> dict[str, Tensor]:
    """Return the scores of every head, (L, H) each, summed over the sequences of a pass."""
    scores = [score for score in SCORES if score.repeats == repeats]
    rows = []
    for layer in seen.layers:
        weights_BHTS = layer.weights_BHTS.double()
        rows.append([score.measure(weights_BHTS).sum(0) for score in scores])
    return {score.key: torch.stack(row) for score, *row in zip(scores, *rows, strict=True)}


@torch.no_grad()
def measure_text(model: GPT, tokens_BT: Tensor) -> tuple[dict[str, Tensor], list[float], Tensor]:
    """Return what `score_heads` on text, `logit_lens` and `mean_outputs` return, from one pass over
    sequences of up to block_size + 1 tokens."""

    def sums(batch: Tensor) -> dict[str, Tensor]:
        seen = capture(model, batch[:, :-1])
        own = {"lens": lens_of(model, seen, batch[:, 1:]), "outputs": outputs_of(seen)}
        return scores_of(seen, repeats=False) | own

    found = average(map(sums, micro_batches(model, tokens_BT)), tokens_BT)
    lens = found.pop("lens") / (tokens_BT.size(1) - 1)
    return found, lens.tolist(), found.pop("outputs")


def find_matches(task: Task | None, tokens_BT: Tensor) -> tuple[Tensor, ...]:
    """Return the sequences with matches of a task, and these, (B, 1, T, T); nothing if there are
    none."""
    if task is None:
        return ()
    match_BTS = torch.from_numpy(task.match(tokens_BT.numpy()))
    some_B = match_BTS.any((1, 2))
    return (tokens_BT[some_B], match_BTS[some_B, None]) if some_B.any() else ()


@torch.no_grad()
def score_match(model: GPT, tokens_BT: Tensor, match_B1TS: Tensor) -> dict[str, Tensor]:
    """Return the weight on the match of every head, (L, H), averaged over sequences."""
    weight_LH = torch.zeros(model.config.n_layer, model.config.n_head)
    batches = micro_batches(model, tokens_BT)
    for batch, match in zip(batches, match_B1TS.split(len(batches[0])), strict=True):
        for i, layer in enumerate(capture(model, batch).layers):
            weight_LH[i] += MATCH.measure(layer.weights_BHTS, match).sum(0) / len(tokens_BT)
    return {MATCH.key: weight_LH}


@torch.no_grad()
def weight_by_distance(model: GPT, tokens_BT: Tensor, token: int) -> tuple[Tensor, Tensor]:
    """Return each head's mean weight on the last occurrence of a token, by its distance from the
    query, (L, H, T), and the number of queries at each distance, (T,). A query may be that token
    itself, at distance 0."""
    T, positions_T = tokens_BT.size(1), torch.arange(tokens_BT.size(1))
    last_BT = torch.where(tokens_BT == token, positions_T, -1).cummax(1).values
    distance_BT = torch.where(last_BT >= 0, positions_T - last_BT, T)  # T: none so far
    count_T = torch.bincount(distance_BT.flatten(), minlength=T + 1)[:T]
    total_LHT = torch.zeros(model.config.n_layer, model.config.n_head, T + 1).double()
    micro = micro_batches(model, tokens_BT)
    at = zip(*(each.split(len(micro[0])) for each in (last_BT, distance_BT)), strict=True)
    for batch, (last, distance) in zip(micro, at, strict=True):
        for i, layer in enumerate(capture(model, batch).layers):
            keys = last.clamp(min=0)[:, None, :, None].expand(-1, model.config.n_head, -1, 1)
            weights_BHT = layer.weights_BHTS.gather(-1, keys)[..., 0].double()
            for head in range(model.config.n_head):
                added = weights_BHT[:, head].flatten()
                total_LHT[i, head].index_add_(0, distance.flatten(), added)
    return total_LHT[..., :T] / count_T.clamp(min=1), count_T


def mean_outputs(model: GPT, tokens_BT: Tensor) -> Tensor:
    """Return the mean of each head's output, before W_O, (L, H, D), over positions and over
    sequences of block_size + 1 tokens."""
    batches = micro_batches(model, tokens_BT)
    sums = ({"outputs": outputs_of(capture(model, batch[:, :-1]))} for batch in batches)
    return average(sums, tokens_BT)["outputs"]


def outputs_of(seen: Pass) -> Tensor:
    """Return each head's output, before W_O, (L, H, D): the mean over positions, summed over the
    sequences of a pass."""
    return torch.stack([layer.z_BHTD.mean(2).sum(0) for layer in seen.layers])


@torch.no_grad()
def ablations(model: GPT, tokens_BT: Tensor, values_LHD: Tensor, what: str) -> Tensor:
    """Return the change of each prediction's loss, (L, H, B, T), if a head's output, before W_O, is
    replaced by its row of `values_LHD`. Only what follows the heads of its layer is computed for
    each head.

    Args:
        tokens_BT: sequences of up to block_size + 1 tokens.
        what: the name of the progress bar.

    Raises:
        UserError: if GPT.forward does more than its blocks, one after the other, or if an attention
            layer does more with its heads than W_O.
    """
    blocks, changes = blocks_of(model), []

    def losses_from(layer: int, z_BHTD: Tensor, seen: Pass, answers_BT: Tensor) -> Tensor:
        with heads_given(blocks[layer].attn, z_BHTD):
            x_BTC = blocks[layer](seen.residual[layer])
        for block in blocks[layer + 1 :]:
            x_BTC = block(x_BTC)
        return losses_of(model.unembed(x_BTC), answers_BT)

    for number, batch in enumerate(progress(micro_batches(model, tokens_BT), what)):
        seen, answers_BT, changed = capture(model, batch[:, :-1]), batch[:, 1:], []
        whole_BT = losses_of(seen.logits_BTV, answers_BT)
        for layer, each in enumerate(seen.layers):
            if number == 0:
                again_BT = losses_from(layer, each.z_BHTD, seen, answers_BT)
                if not torch.allclose(again_BT, whole_BT, atol=1e-4):
                    raise UserError(
                        "GPT.forward must be its blocks, then GPT.unembed, and an attention layer "
                        "W_O of its heads; update ablations"
                    )
            for head, value_D in enumerate(values_LHD[layer]):
                z_BHTD = each.z_BHTD.clone()
                z_BHTD[:, head] = value_D
                changed.append(losses_from(layer, z_BHTD, seen, answers_BT) - whole_BT)
        changes.append(torch.stack(changed))
    return torch.cat(changes, 1).unflatten(0, values_LHD.shape[:2])


def ablate(model: GPT, tokens_BT: Tensor) -> dict[str, Tensor]:
    """Measure the change in loss when the output of one head, before W_O, is replaced, (L, H) each.

    `zero` replaces it with zero. `mean` replaces it with its mean over the positions and sequences
    of this evaluation, which removes what depends on the text and keeps the constant part.
    `zero_error` and `mean_error` are the standard errors over sequences.

    Args:
        tokens_BT: at least two sequences of block_size + 1 tokens.
    """
    mean_LHD, changes = mean_outputs(model, tokens_BT), {}
    for kind, values_LHD in (("zero", torch.zeros_like(mean_LHD)), ("mean", mean_LHD)):
        what = f"ablating each head ({kind})"
        change_LHB = ablations(model, tokens_BT, values_LHD, what).mean(-1)
        changes[kind] = change_LHB.mean(-1)
        changes[f"{kind}_error"] = change_LHB.std(-1) / len(tokens_BT) ** 0.5
    return changes


def mean_and_error(change_BT: Tensor, at_BT: Tensor) -> tuple[float, float]:
    """Return the mean change at these places, and its standard error over sequences, which may have
    different numbers of places."""
    count_B, count = at_BT.sum(1), at_BT.sum()
    mean = change_BT[at_BT].sum() / count
    excess_B = (change_BT * at_BT).sum(1) - mean * count_B
    error = excess_B.norm() / count * (len(count_B) / (len(count_B) - 1)) ** 0.5
    return float(mean), float(error)


def spread(count: int, total: int) -> list[int]:
    """Choose at most `count` of `total` places, evenly spaced; two or more include both ends."""
    return sorted({int(i) for i in torch.linspace(0, total - 1, min(count, total)).round()})


def repeated(vocab_size: int, period: int, count: int = REPEATS) -> Tensor:
    """Draw random strings of P distinct tokens, each repeated once, (count, 2P). Every call returns
    the same strings."""
    generator = torch.Generator().manual_seed(0)
    strings = torch.rand(count, vocab_size, generator=generator).argsort(dim=1)[:, :period]
    return torch.cat((strings, strings), dim=1)


@torch.no_grad()
def measure_copying(model: GPT, period: int) -> tuple[float, float, dict[str, Tensor]]:
    """Measure how well a model copies the strings of `repeated`.

    Returns:
        The loss on the first copy, the loss on the second, and the scores of each head on these
        strings, (L, H) each. The losses exclude a copy's first token, because the end of a string
        cannot be predicted.
    """
    tokens_BT = repeated(model.token_embedding.num_embeddings, period)

    def sums(batch: Tensor) -> dict[str, Tensor]:
        seen = capture(model, batch)
        losses_T = losses_of(seen.logits_BTV[:, :-1], batch[:, 1:]).sum(0)
        return scores_of(seen, repeats=True) | {"losses": losses_T}

    scores = average(map(sums, micro_batches(model, tokens_BT)), tokens_BT)
    losses_T = scores.pop("losses")
    return losses_T[: period - 1].mean().item(), losses_T[period:].mean().item(), scores


def strongest_frequencies(numbers_nC: Tensor) -> float:
    """Return the fraction of the power of the numbers' embeddings, without their mean, that is in
    the five strongest frequencies (Nanda et al. 2023)."""
    power = torch.fft.rfft(numbers_nC.double(), dim=0)[1:].abs().square().sum(1)
    return (power.sort().values[-5:].sum() / power.sum()).item()


@torch.no_grad()
def logit_lens(model: GPT, tokens_BT: Tensor) -> list[float]:
    """Return the loss after the embedding and after each layer, with the final norm and the
    unembedding applied to the residual stream (nostalgebraist 2020).

    Raises:
        UserError: if the logits after the last layer are not the model's logits.
    """
    batches = micro_batches(model, tokens_BT)
    sums = (lens_of(model, capture(model, batch[:, :-1]), batch[:, 1:]) for batch in batches)
    mean = average(({"lens": each} for each in sums), tokens_BT)["lens"]
    return (mean / (tokens_BT.size(1) - 1)).tolist()


def lens_of(model: GPT, seen: Pass, targets_BT: Tensor) -> Tensor:
    """Return the losses of the logit lens, (L + 1,), summed over all predictions of a pass.

    Raises:
        UserError: see `logit_lens`.
    """
    *earlier, last = map(model.unembed, seen.residual)
    if not torch.allclose(last, seen.logits_BTV):
        raise UserError("GPT.unembed must return the same logits as GPT.forward")
    return torch.stack([losses_of(each, targets_BT).sum() for each in (*earlier, last)]).double()
