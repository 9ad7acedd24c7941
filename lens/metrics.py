"""Scores of attention patterns.

`A` has the attention weights after the softmax, (..., T, T): A[q, k] is the weight of key k for
query q, with indices from 0. Each score is a mean over the queries of one head, (...); further
averages are over sequences, never over heads. A docstring's first line is the formula, its last
line the source.
"""

import inspect
import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from model.attention import causal_mask

SINK = 0.3  # a head above this first-token score is called a sink (Gu et al. 2024)


def uniform_attention(T: int, window: int = 0) -> Tensor:
    """Return (T, T) weights: each query attends equally to all positions that it may attend to."""
    return F.normalize(causal_mask(T, T, window).float(), p=1, dim=-1)


def entropy(A: Tensor) -> Tensor:
    """-sum_k A ln A / ln(q + 1), mean over q >= 1

    1 is uniform attention, 0 attention to a single key; 0 ln 0 = 0.

    Shannon 1948
    """
    nats = torch.special.entr(A).sum(-1)[..., 1:]
    return (nats / torch.arange(2, A.size(-1) + 1).log()).mean(-1)


def previous_token(A: Tensor) -> Tensor:
    """A[q, q-1], mean over q >= 1

    Olsson et al. 2022
    """
    return A.diagonal(-1, -2, -1).mean(-1)


def own_position(A: Tensor) -> Tensor:
    """A[q, q], mean over q >= 1

    Clark et al. 2019
    """
    return A.diagonal(0, -2, -1)[..., 1:].mean(-1)


def first_token(A: Tensor) -> Tensor:
    """A[q, 0], mean over q >= 1; a sink above 0.3

    Gu et al. 2024
    """
    return A[..., 1:, 0].mean(-1)


def mean_distance(A: Tensor) -> Tensor:
    """sum A (q - k) / sum A, positions

    Vig & Belinkov 2019
    """
    place = torch.arange(A.size(-1), dtype=A.dtype)
    return (A * (place[:, None] - place)).sum((-2, -1)) / A.sum((-2, -1))


def induction(A: Tensor) -> Tensor:
    """on [r, r]: A[q, q-P+1], mean over q = P .. 2P-1

    The weight of the token after the previous occurrence. It measures a pattern, not copying.

    Olsson et al. 2022
    """
    P = A.size(-1) // 2
    return A.diagonal(1 - P, -2, -1)[..., 1 : P + 1].mean(-1)


def duplicate_token(A: Tensor) -> Tensor:
    """on [r, r]: A[q, q-P], mean over q = P .. 2P-1

    The weight of the previous occurrence of the token.

    Wang et al. 2022
    """
    P = A.size(-1) // 2
    return A.diagonal(-P, -2, -1)[..., :P].mean(-1)


def weight_on_match(A: Tensor, match: Tensor) -> Tensor:
    """sum of A[q, k] over the keys k that match q, mean over q with such keys

    In a task, these keys determine the next token: `match` is Task.match. If they are the tokens
    after previous occurrences, this is the prefix-matching score.

    Olsson et al. 2022
    """
    return (A * match).sum((-2, -1)) / match.any(-1).sum(-1)


class Score:
    """A score, with its formula and its source."""

    def __init__(self, measure: Callable[..., Tensor], repeats: bool = False) -> None:
        """
        Args:
            repeats: measure on [r, r], with r of P distinct random tokens, instead of on text.
        """
        self.measure, self.repeats, self.key = measure, repeats, measure.__name__
        self.name = self.key.replace("_", " ")
        self.formula, *_, self.source = (inspect.getdoc(measure) or "").splitlines()

    def uniform(self, T: int, *match: Tensor) -> float:
        """Return the score of uniform causal attention over T positions."""
        return float(self.measure(uniform_attention(T), *match).mean())


SCORES = [
    *map(Score, (entropy, previous_token, own_position, first_token, mean_distance)),
    Score(induction, repeats=True),
    Score(duplicate_token, repeats=True),
]
MATCH = Score(weight_on_match)


def uniform_scores(T: int, period: int | None, *match: Tensor) -> dict[Score, float]:
    """Return the scores that have a value, with that of uniform attention.

    Args:
        T: length of the text.
        period: length of the repeated strings; None if there are none.
        match: the matches in the text, if there are some.
    """
    lengths = {False: T, True: 2 * (period or 0)}
    uniform = {score: score.uniform(lengths[score.repeats]) for score in SCORES}
    if match:
        uniform[MATCH] = MATCH.uniform(T, *match)
    return {score: value for score, value in uniform.items() if not math.isnan(value)}
