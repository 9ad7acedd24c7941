"""The command ngrams: where a run and the n-grams of its text differ, and which heads matter
there."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from common.errors import UserError
from common.progress import progress
from configs.config import STRICT
from data.ngrams import Array
from lens.capture import head_replaced
from lens.heads import names_of
from lens.measure import mean_and_error, token_losses
from lens.ngram_model import mixed_losses, ngrams_of, read_ngrams
from lens.subject import Checkpoint, Sequences, Source, Subject
from lens.tables import Table, visible
from model.gpt import GPT

LOSSES = ["model", "n-grams", "difference"]
PLACES = 8  # number of printed tokens at which the model is better, or the n-grams are
APART = 32  # minimum distance between two of them, in tokens
BEFORE = 30  # characters printed before each
SAME = 3  # of these characters, which with the token differ between any two


@dataclass(frozen=True, config=STRICT)
class Ngrams:
    """Compare a run and its heads with the n-grams of its text"""

    source: Source = None
    checkpoint: Checkpoint = "best"
    sequences: Sequences = None


def ngrams(word: str | None, options: Ngrams) -> Iterator[str | Table]:
    """Yield the tables.

    Raises:
        UserError: for a run that is not on a text.
    """
    subject = Subject(word, options)
    batches = subject.batches
    if batches.task:
        raise UserError("a task has no n-grams; use a run on a text")
    tokens_BT = subject.sequences(options.sequences)
    counted_BT, lengths_BT = read_ngrams(batches, len(tokens_BT))
    model_BT = surprisal(subject.model, tokens_BT)
    yield (
        f"n-grams of up to {len(ngrams_of(batches).orders)} tokens of the training split;\n"
        f"{subject.unit} on {subject.describe(tokens_BT)}"
    )
    yield table_of_lengths(model_BT, counted_BT, lengths_BT)
    for name, sign in (("the model is", 1), ("the n-grams are", -1)):
        rows = most_different(tokens_BT, subject.tokenizer.labels, model_BT, counted_BT, sign)
        yield Table([[f"where {name} better", "token", *LOSSES], *rows], words=0)
    mixed_BT = mixed(model_BT, counted_BT)
    yield table_of_heads(subject.model, tokens_BT, model_BT, counted_BT, mixed_BT)
    yield f"loss of both mixed {mixed_BT.mean():.4f}"


def surprisal(model: GPT, tokens_BT: Tensor) -> Array:
    """Return `token_losses` in float64."""
    return token_losses(model, tokens_BT).double().numpy()


def mixed(model_BT: Array, counted_BT: Array) -> Array:
    """Return the surprisals of both mixed."""
    return mixed_losses(model_BT.ravel(), counted_BT.ravel()).reshape(model_BT.shape)


def table_of_lengths(model_BT: Array, counted_BT: Array, lengths_BT: Array) -> Table:
    """Return the losses on the tokens of each length of the longest counted context, and on all."""
    rows: list[list[Any]] = [["longest counted context", "fraction of tokens", *LOSSES]]
    lengths = np.unique(lengths_BT).tolist()
    for name, chosen in [*((length, [length]) for length in lengths), ("all", lengths)]:
        part_BT = np.isin(lengths_BT, chosen)
        losses = model_BT[part_BT].mean(), counted_BT[part_BT].mean()
        rows.append([name, part_BT.mean(), *losses, losses[0] - losses[1]])
    return Table(rows)


def most_different(
    tokens_BT: Tensor, labels: list[str], model_BT: Array, counted_BT: Array, sign: int
) -> list[list[Any]]:
    """Return rows of the tokens whose surprisals differ most, in distinct places.

    Args:
        sign: 1 for tokens at which the model is better, -1 for those at which the n-grams are.
    """
    rows: dict[int, list[Any]] = {}
    ends = set()
    difference_BT = model_BT - counted_BT
    for place in np.argsort(sign * difference_BT, axis=None).tolist():
        b, t = divmod(place, model_BT.shape[1])
        if len(rows) == PLACES or sign * difference_BT[b, t] >= 0:
            break
        if all(abs(place - other) >= APART for other in rows):
            *before, token = [labels[i] for i in tokens_BT[b, : t + 2]]
            text = "".join(before)[-BEFORE:]
            ends.add(text[-SAME:] + token)
            if len(ends) > len(rows):
                losses = [array[b, t] for array in (model_BT, counted_BT, difference_BT)]
                rows[place] = [visible(text), visible(token), *losses]
    return [*rows.values()]


def table_of_heads(
    model: GPT, tokens_BT: Tensor, model_BT: Array, counted_BT: Array, mixed_BT: Array
) -> Table:
    """Return what is lost without each head, first those that the n-grams replace least."""
    rows, gap_BT = list[list[Any]](), model_BT - counted_BT
    for name, at in progress(names_of(model).items(), "ablating each head"):
        with head_replaced(model, *at, 0.0):
            ablated_BT = surprisal(model, tokens_BT)
        change_BT = ablated_BT - model_BT
        alone, both = (
            mean_and_error(torch.from_numpy(each), torch.ones(each.shape, dtype=torch.bool))
            for each in (change_BT, mixed(ablated_BT, counted_BT) - mixed_BT)
        )
        left = 100 * both[0] / alone[0] if alone[0] > 2 * alone[1] else None
        parts = []
        for part_BT in (gap_BT < 0, gap_BT >= 0):
            gap = abs(gap_BT[part_BT].sum())
            parts.append(100 * change_BT[part_BT].sum() / gap if gap else None)
        rows.append([name, alone, both, left, *parts])
    rows.sort(key=lambda row: -row[2][0])
    heading = ["loss change", "mixed with n-grams", "left, %", "advantage, %", "deficit, %"]
    return Table([["head", *heading], *rows], form=".1f")
