"""Heads at chosen places of a text: the weight on the last occurrence of a token, and the loss
change where a token is the answer."""

from typing import Any

from torch import Tensor

from common.errors import UserError
from data.tokenizer import Tokenizer
from lens.measure import ablations, mean_and_error, mean_outputs, weight_by_distance
from lens.tables import Table, visible
from model.gpt import GPT

COLUMNS = 12  # ranges of distances, at most


def find_token(tokenizer: Tokenizer, text: str, flag: str) -> int:
    """Return the token that a flag names; \\n and \\t stand for a newline and a tab.

    Raises:
        UserError: if the text is not one token.
    """
    tokens = tokenizer.encode(text.replace("\\n", "\n").replace("\\t", "\t"))
    if len(tokens) != 1:
        raise UserError(f"{flag} {text!r} must be one token, not {len(tokens)}")
    return int(tokens[0])


def table_of_distances(model: GPT, labels: list[str], tokens_BT: Tensor, token: int) -> Table:
    """Return a row for each head: its mean weight on the last occurrence of the token, by distance.
    Of uniform attention, it depends on the position of the query as well."""
    weight_LHT, count_T = weight_by_distance(model, tokens_BT, token)
    T = int(count_T.nonzero().max()) + 1 if count_T.any() else 0
    if T == 0:
        raise UserError(f"{visible(labels[token])} is not in the measured sequences")
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

    Raises:
        UserError: if the token is never the answer.
    """
    at_BT = tokens_BT[:, 1:] == token
    if not at_BT.any():
        raise UserError(f"{visible(labels[token])} is not in the measured sequences")
    name, rows = visible(labels[token]), list[list[Any]]()
    what = "ablating each head (mean)"
    for layer, head, change_BT in ablations(model, tokens_BT, mean_outputs(model, tokens_BT), what):
        there, elsewhere = mean_and_error(change_BT, at_BT), mean_and_error(change_BT, ~at_BT)
        ratio = there[0] / elsewhere[0] if elsewhere[0] > 2 * elsewhere[1] else None
        rows.append([f"L{layer}H{head}", there, elsewhere, ratio])
    rows.sort(key=lambda row: -row[1][0])
    heading = f"loss change at {name} ({int(at_BT.sum()):,} places)"
    return Table([["head", heading, "elsewhere", "ratio"], *rows])
