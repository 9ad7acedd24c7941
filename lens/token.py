"""The commands token, the weight of each head on the last occurrence of a token and the loss change
where this token is the answer, and probability, of a token after each position of a prompt."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from common.errors import UserError
from configs.config import STRICT
from data.tokenizer import Tokenizer
from lens.heads import ablated
from lens.measure import ablations, mean_and_error, mean_outputs, weight_by_distance
from lens.subject import Checkpoint, Prompt, Sequences, Source, Subject, Without
from lens.tables import Table, visible
from model.gpt import GPT

COLUMNS = 12  # ranges of distances, at most


@dataclass(frozen=True, config=STRICT)
class Token:
    """Print each head's weight on a token, such as '\\n', and the loss change at it"""

    without: Without = None
    source: Source = None
    checkpoint: Checkpoint = "best"
    sequences: Sequences = None


def token(text: str, word: str | None, options: Token) -> Iterator[str | Table]:
    """Yield a table for the positions after the token, and one for those before it.

    Raises:
        UserError: if there are none.
    """
    subject = Subject(word, options)
    sequences_BT, labels = subject.sequences(options.sequences), subject.tokenizer.labels
    chosen = find_token(subject.tokenizer, text)
    here_BT = sequences_BT == chosen
    if not here_BT.any():
        raise UserError(f"{visible(labels[chosen])} is not in the measured sequences")
    yield f"on {subject.describe(sequences_BT)}"
    with ablated(subject.model, options.without):
        if here_BT[:, :-1].any():
            yield table_of_distances(subject.model, labels, sequences_BT[:, :-1], chosen)
        if here_BT[:, 1:].any():
            yield table_at(subject.model, labels, sequences_BT, chosen)


@dataclass(frozen=True, config=STRICT)
class Probability:
    """Print the probability of a token, such as '\\n', after each position of the prompt"""

    prompt: Prompt = None
    source: Source = None
    checkpoint: Checkpoint = "best"


@torch.no_grad()
def probability(text: str, word: str | None, options: Probability) -> Iterator[Table]:
    """Yield a row for each position."""
    subject = Subject(word, options)
    token, labels = find_token(subject.tokenizer, text), subject.tokenizer.labels
    probability_T = subject.model(subject.prompt_T[None])[0].softmax(-1)[:, token]
    rows: list[list[Any]] = [["position", "token", f"P({visible(labels[token])} is next)"]]
    for i, (read, p) in enumerate(zip(subject.prompt_T.tolist(), probability_T, strict=True)):
        rows.append([str(i), visible(labels[read]), p.item()])
    yield Table(rows, words=2)


def find_token(tokenizer: Tokenizer, text: str) -> int:
    """Return the token that a text names; \\n and \\t stand for a newline and a tab.

    Raises:
        UserError: if the text is not one token.
    """
    tokens = tokenizer.encode(text.replace("\\n", "\n").replace("\\t", "\t"))
    if len(tokens) != 1:
        raise UserError(f"TOKEN {text!r} must be one token, not {len(tokens)}")
    return int(tokens[0])


def table_of_distances(model: GPT, labels: list[str], tokens_BT: Tensor, token: int) -> Table:
    """Return a row for each head: its mean weight on the last occurrence of the token, by distance.
    Of uniform attention, it depends on the position of the query as well."""
    weight_LHT, count_T = weight_by_distance(model, tokens_BT, token)
    T = int(count_T.nonzero().max()) + 1
    width = -(-T // COLUMNS)
    parts = [slice(start, min(start + width, T)) for start in range(0, T, width)]

    def means(weight_T: Tensor) -> list[float]:
        sums = [(weight_T[part] * count_T[part]).sum() / count_T[part].sum() for part in parts]
        return [float(each) for each in sums]

    ranges = [f"{p.start}-{p.stop - 1}" if p.stop - p.start > 1 else f"{p.start}" for p in parts]
    rows: list[list[Any]] = [
        [f"weight on the last {visible(labels[token])}, by distance", *ranges],
        ["queries", *(int(count_T[part].sum()) for part in parts)],
    ]
    for layer, weight_HT in enumerate(weight_LHT):
        for head, weight_T in enumerate(weight_HT):
            rows.append([f"L{layer}H{head}", *means(weight_T)])
    return Table(rows)


def table_at(model: GPT, labels: list[str], tokens_BT: Tensor, token: int) -> Table:
    """Return a row for each head: the loss change (mean ablation) where the token is the answer and
    elsewhere, and their ratio, the head's specialty, if the change elsewhere exceeds two standard
    errors; first the heads that matter most there.
    """
    at_BT = tokens_BT[:, 1:] == token
    name, rows = visible(labels[token]), list[list[Any]]()
    means_LHD = mean_outputs(model, tokens_BT)
    change_LHBT = ablations(model, tokens_BT, means_LHD, "ablating each head (mean)")
    for layer, head in np.ndindex(*means_LHD.shape[:2]):
        change_BT = change_LHBT[layer, head]
        there, elsewhere = mean_and_error(change_BT, at_BT), mean_and_error(change_BT, ~at_BT)
        ratio = there[0] / elsewhere[0] if elsewhere[0] > 2 * elsewhere[1] else None
        rows.append([f"L{layer}H{head}", there, elsewhere, ratio])
    rows.sort(key=lambda row: -row[1][0])
    heading = f"loss change at {name} ({int(at_BT.sum()):,} places)"
    return Table([["head", heading, "elsewhere", "ratio"], *rows])
