"""The command paths: what one layer of attention has learned, without norms and MLP, as tables over
tokens (Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits").

With embeddings E, unembedding U, and R(d), which rotates a query by d positions if positions are
rotary, the logits of such a model are a sum over paths from the tokens:

    logits(t) = U E[x_t] + sum over heads and over positions s <= t of A(t, s) U W_O W_V E[x_s]
    A(t, s)   = softmax over s of (R(t - s) W_Q E[x_t]) (W_K E[x_s]) / sqrt(D)

The direct path is a table of bigrams: a row for the current token. A head has two tables: the score
of a query with a source, at each distance, and what attending to the source adds to each logit.
Together, these are skip-trigrams: "source ... query" raises a token.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from common.errors import UserError
from common.progress import progress
from configs.config import STRICT, Count, ModelConfig
from data.ngrams import MAX_VAL_TOKENS
from lens.capture import blocks_of, rotated
from lens.measure import losses_of, micro_batches
from lens.subject import Checkpoint, Source, Subject
from lens.tables import Table, visible
from model.error import largest_error
from model.gpt import GPT

NEEDED = {
    "n_layer": 1,
    "mlp_ratio": 0,
    "norm": "none",
    "qk_norm": False,
    "ngrams": 1,
    "bias": False,
    "head_bias": False,
}
TOLERANCE = 1e-4  # relative error of the logits in float32
COVERED = 0.98  # fraction of the text that the printed tokens make up
MOST = 1000  # of these tokens
BEST = 3  # queries, and raised tokens, in a row


@dataclass(frozen=True, config=STRICT)
class Paths:
    """Print the bigrams and skip-trigrams that one layer of attention alone has learned"""

    rows: Count = 10
    """Number of rows for the direct path and for each head, the strongest."""

    source: Source = None
    checkpoint: Checkpoint = "best"


@torch.no_grad()
def paths(word: str | None, options: Paths) -> Iterator[str | Table]:
    """Yield the losses, and the strongest entries of each path.

    Raises:
        UserError: for a model that is not the sum of these paths.
    """
    subject = Subject(word, options)
    check_paths(subject.config.model)
    tables, sequences_BT = TokenTables(subject.model), subject.sequences(2)[:, :-1]
    logits_BTV = torch.stack([tables.logits(tokens_T) for tokens_T in sequences_BT])
    error = largest_error(logits_BTV, subject.model(sequences_BT))
    if error > TOLERANCE:
        raise UserError(f"the paths do not give the model's logits (error {error:.1e})")
    losses, counts_V = mean_losses(subject)
    counted = " (bigrams are counted in the training split)" if "counted bigrams" in losses else ""
    count, total = int(counts_V.sum()), subject.batches.validation_tokens
    yield (
        f"the tables alone give the model's logits: largest relative error {error:.1e}\n"
        f"losses{counted} on {count:,} of {total:,} validation tokens of {subject.text}"
    )
    yield Table([["path", subject.unit], *losses.items()])

    frequency_V = counts_V / counts_V.sum()
    tokens_K = most_frequent(frequency_V)
    names = [visible(subject.tokenizer.labels[token]) for token in tokens_K]
    yield (
        f"paths between the {len(tokens_K):,} most frequent tokens\n"
        "logit: what is added for the first raised token, relative to the mean over the vocabulary"
    )
    yield table_of_bigrams(tables.raised(tables.E_VC, tokens_K), names, options.rows)
    yield (
        "best first by weight x logit; weight: of the first query on the source, at the distance\n"
        "(back) where it is highest, if exp(score) of each other key, except the query's own, is\n"
        "the mean over the tokens of the text"
    )
    weight_HKK, distance_HKK = tables.highest_weights(tokens_K, frequency_V)
    for h, written_VC in enumerate(tables.written_HVC):
        distance_KK = distance_HKK[h] if tables.rotary else None  # else every distance is the same
        of_head = weight_HKK[h], distance_KK, tables.raised(written_VC, tokens_K)
        yield table_of_head(f"L0H{h}", *of_head, names, options.rows)


def check_paths(config: ModelConfig) -> None:
    """Check that a model is the sum of these paths.

    Raises:
        UserError: naming the flags that it lacks.
    """
    flags = {name: value for name, value in NEEDED.items() if getattr(config, name) != value}
    if config.positions == "learned":
        flags["positions"] = "rotary"
    if flags:
        needed = " ".join(f"--model.{name} {str(value).lower()}" for name, value in flags.items())
        raise UserError(f"paths reads one layer of attention alone; train a run with {needed}")


class TokenTables:
    """The tables of the paths, kept as factors: an entry is a product of two rows."""

    def __init__(self, model: GPT) -> None:
        attn = blocks_of(model)[0].attn
        self.rotary, self.scale = attn.rotary, attn.head_width**-0.5
        self.distances = range(attn.attend.window or model.config.block_size)
        self.E_VC = model.token_embedding.weight
        self.U_VC = (model.head or model.token_embedding).weight
        self.q_HVD, self.k_HVD, v_HVD = (
            attn.for_each_query(attn.split_heads(layer(self.E_VC[None])))[0]
            for layer in (attn.query, attn.key, attn.value)
        )
        self.written_HVC = v_HVD @ attn.out.weight.T.unflatten(0, (attn.n_head, -1))

    def queries(self, tokens_n: Tensor, distance: int) -> Tensor:
        """Return R(distance) W_Q E / sqrt(D) of tokens, (H, n, D)."""
        q_HnD = self.q_HVD[:, tokens_n] * self.scale
        return rotated(self.rotary, q_HnD, distance) if self.rotary else q_HnD

    def logits(self, tokens_T: Tensor) -> Tensor:
        """Return the logits after each position, (T, V): the direct path plus the heads."""
        T = len(tokens_T)
        scores_HTS = torch.full((len(self.q_HVD), T, T), -math.inf)
        for distance in self.distances[:T]:
            k_HnD = self.k_HVD[:, tokens_T[: T - distance]]
            scores_Hn = (self.queries(tokens_T[distance:], distance) * k_HnD).sum(-1)
            scores_HTS.diagonal(-distance, 1, 2).copy_(scores_Hn)
        logits_TV = self.E_VC[tokens_T] @ self.U_VC.T
        for weights_TS, written_VC in zip(scores_HTS.softmax(-1), self.written_HVC, strict=True):
            logits_TV += weights_TS @ (written_VC[tokens_T] @ self.U_VC.T)
        return logits_TV

    def raised(self, x_VC: Tensor, tokens_K: Tensor) -> Tensor:
        """Return what a vector for each token adds to the logits of these tokens, (K, K), relative
        to the mean over the vocabulary."""
        return x_VC[tokens_K] @ (self.U_VC[tokens_K] - self.U_VC.mean(0)).T

    def highest_weights(self, tokens_K: Tensor, frequency_V: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weight of each query on each source, (H, K, K), at the distance where it is
        highest, and this distance. The other keys of a whole context are the query's own and, at
        each other distance, one with the mean exp(score) of tokens of this frequency. Weight and
        distance are 0 if there is no earlier position."""
        k_HKD, n = self.k_HVD[:, tokens_K], len(self.distances)
        keys_nHK = torch.full((n + 1, *k_HKD.shape[:2]), -math.inf)  # of each distance, and none
        keys_nHK[0] = (self.queries(tokens_K, 0) * k_HKD).sum(-1)
        for distance in progress(self.distances[1:], "scoring each distance"):
            both = zip(self.queries(tokens_K, distance), self.k_HVD, strict=True)
            for h, (q_KD, k_VD) in enumerate(both):  # H x K x V numbers can be too many
                scores_KV = q_KD @ k_VD.T + frequency_V.log()
                keys_nHK[distance, h] = scores_KV.logsumexp(-1)
        before, after = keys_nHK.logcumsumexp(0), keys_nHK.flip(0).logcumsumexp(0).flip(0)
        best_HKK = torch.full((*k_HKD.shape[:2], len(tokens_K)), -math.inf)
        distance_HKK = torch.zeros(best_HKK.shape, dtype=torch.long)
        for distance in self.distances[1:]:
            others_HK1 = torch.logaddexp(before[distance - 1], after[distance + 1])[..., None]
            odds_HKK = self.queries(tokens_K, distance) @ k_HKD.mT - others_HK1
            distance_HKK[odds_HKK > best_HKK] = distance
            best_HKK = torch.maximum(best_HKK, odds_HKK)
        return best_HKK.sigmoid(), distance_HKK


def mean_losses(subject: Subject) -> tuple[dict[str, float], Tensor]:
    """Return the losses of the direct path, of the model and, of a text, of counted bigrams, and
    how often each token is predicted there."""
    model, batches = subject.model, subject.batches
    total, counts_V = torch.zeros(2, dtype=torch.float64), torch.zeros(subject.V)
    for tokens_BT in batches.split("validation", 32, MAX_VAL_TOKENS):
        for part_BT in micro_batches(model, tokens_BT):
            read_BT, targets_BT = part_BT[:, :-1], part_BT[:, 1:]
            each = model.unembed(model.embed(read_BT)), model(read_BT)
            total += torch.stack([losses_of(logits, targets_BT).sum() for logits in each])
            counts_V += torch.bincount(targets_BT.flatten(), minlength=subject.V)
    direct, whole = (total / counts_V.sum()).tolist()
    losses = {"direct path alone": direct, "direct path and heads": whole}
    if "bigram" in batches.baselines:
        losses["counted bigrams"] = batches.baselines["bigram"]
    return losses, counts_V


def most_frequent(frequency_V: Tensor) -> Tensor:
    """Return the most frequent tokens, which make up `COVERED` of the text, at most `MOST`."""
    tokens_V = frequency_V.argsort(descending=True)
    count = int((frequency_V[tokens_V].cumsum(0) < COVERED).sum()) + 1
    return tokens_V[: min(count, MOST)]


def table_of_bigrams(logit_KK: Tensor, names: list[str], rows: int) -> Table:
    """Return the tokens of the direct path that raise a logit most."""
    table: list[list[Any]] = [["direct path", "raises", "logit"]]
    raised = logit_KK.topk(min(BEST, len(names)))
    for i in raised.values[:, 0].argsort(descending=True)[:rows].tolist():
        table.append([names[i], listed(names, raised.indices[i]), raised.values[i, 0].item()])
    return Table(table, words=2)


def table_of_head(
    name: str,
    weight_KK: Tensor,
    distance_KK: Tensor | None,
    logit_KK: Tensor,
    names: list[str],
    rows: int,
) -> Table:
    """Return the sources by which a head raises a logit most."""
    best = min(BEST, len(names))
    queries, raised = weight_KK.topk(best, dim=0), logit_KK.topk(best)
    weight_K, logit_K = queries.values[0], raised.values[:, 0]
    table: list[list[Any]] = [[f"{name}: source", "... query", "raises", "back", "weight", "logit"]]
    for source in (weight_K * logit_K).argsort(descending=True)[:rows].tolist():
        if not weight_K[source]:  # no query sees another position
            continue
        query = queries.indices[0, source]
        table.append(
            [
                names[source],
                f"... {listed(names, queries.indices[:, source])}",
                f"-> {listed(names, raised.indices[source])}",
                None if distance_KK is None else int(distance_KK[query, source]),
                weight_K[source].item(),
                logit_K[source].item(),
            ]
        )
    return Table(table, words=3)


def listed(names: list[str], chosen: Tensor) -> str:
    return " ".join(names[i] for i in chosen.tolist())
