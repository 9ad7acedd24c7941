"""Scores of attention patterns: what a head does, as a number.

`A` are attention weights after the softmax, (..., T, T): A[q, k] is how much query q takes from key
k; indices count from 0. Each score is a mean over queries, (...), so that it is of one head;
whoever averages further does so over windows, never over heads. Against each stands the score of
`uniform_attention`, which attends to everything alike: the level of chance.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

SINK = 0.3  # a head above this first-token score is called a sink (Gu et al. 2024)


def uniform_attention(T: int) -> Tensor:
    """(T, T): each query attends alike to itself and to all before it."""
    return torch.ones(T, T).tril() / torch.arange(1, T + 1)[:, None]


def entropy(A: Tensor) -> Tensor:
    """How spread a head's attention is: 1 is uniform, 0 is all on one key.

    H(q) = -sum_k A[q, k] ln A[q, k] in nats, with 0 ln 0 = 0, over ln(q + 1), its largest; the mean
    over q >= 1.
    """
    T = A.size(-1)
    nats = torch.special.entr(A).sum(-1)[..., 1:]
    return (nats / torch.arange(2, T + 1, device=A.device).log()).mean(-1)


def entropy_nats(A: Tensor) -> Tensor:
    """The same before it is normalised: the mean of H(q) over q >= 1, in nats."""
    return torch.special.entr(A).sum(-1)[..., 1:].mean(-1)


def previous_token(A: Tensor) -> Tensor:
    """Mean over q >= 1 of A[q, q - 1] (Olsson et al. 2022)."""
    return A.diagonal(-1, -2, -1).mean(-1)


def first_token(A: Tensor) -> Tensor:
    """Mean over q >= 1 of A[q, 0]; a head above 0.3 is called a sink (Gu et al. 2024)."""
    return A[..., 1:, 0].mean(-1)


def mean_distance(A: Tensor) -> Tensor:
    """sum A[q, k] (q - k) / sum A[q, k], in positions (Vig & Belinkov 2019)."""
    places = torch.arange(A.size(-1), device=A.device, dtype=A.dtype)
    back = (places[:, None] - places).clamp(min=0)
    return (A * back).sum((-2, -1)) / A.sum((-2, -1))


def induction(A: Tensor) -> Tensor:
    """On [r, r], r of P different tokens: mean over q = P .. 2P - 1 of A[q, q - P + 1], the token
    after the previous copy of this one (Olsson et al. 2022). A pattern is not yet copying."""
    P = A.size(-1) // 2
    return A.diagonal(1 - P, -2, -1)[..., 1 : P + 1].mean(-1)


def duplicate_token(A: Tensor) -> Tensor:
    """On [r, r], r of P different tokens: mean over q = P .. 2P - 1 of A[q, q - P], the previous
    copy of this token (Wang et al. 2022)."""
    P = A.size(-1) // 2
    return A.diagonal(-P, -2, -1)[..., :P].mean(-1)


@dataclass(frozen=True)
class Score:
    """A score, and what a table says of it."""

    key: str
    name: str
    measure: Callable[[Tensor], Tensor]
    formula: str
    source: str
    repeats: bool = False
    """Measured on random strings repeated, not on text."""

    def uniform(self, T: int) -> float:
        """Of uniform causal attention over T positions."""
        return float(self.measure(uniform_attention(T)))


SCORES = [
    Score(
        "entropy",
        "entropy",
        entropy,
        "-sum_k A ln A / ln(q + 1), mean over q >= 1",
        "Shannon 1948",
    ),
    Score(
        "entropy_nats",
        "in nats",
        entropy_nats,
        "-sum_k A ln A, mean over q >= 1",
        "Shannon 1948",
    ),
    Score(
        "previous_token",
        "previous token",
        previous_token,
        "A[q, q-1], mean over q >= 1",
        "Olsson et al. 2022",
    ),
    Score(
        "first_token",
        "first token",
        first_token,
        f"A[q, 0], mean over q >= 1; a sink above {SINK}",
        "Gu et al. 2024",
    ),
    Score(
        "mean_distance",
        "mean distance",
        mean_distance,
        "sum A (q - k) / sum A, positions",
        "Vig & Belinkov 2019",
    ),
    Score(
        "induction",
        "induction",
        induction,
        "on [r, r]: A[q, q-P+1], mean over q = P .. 2P-1",
        "Olsson et al. 2022",
        repeats=True,
    ),
    Score(
        "duplicate_token",
        "duplicate token",
        duplicate_token,
        "on [r, r]: A[q, q-P], mean over q = P .. 2P-1",
        "Wang et al. 2022",
        repeats=True,
    ),
]
