"""Scores of attention patterns: what a head does, as a number.

`A` are attention weights after the softmax, (..., T, T): A[q, k] is how much query q takes from key
k; indices count from 0. Each score is a mean over queries, (...), of one head; whoever averages
further does so over sequences, never over heads. Beside each stands the score of
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

    H(q) = -sum_k A[q, k] ln A[q, k], with 0 ln 0 = 0, over ln(q + 1), its largest.
    """
    nats = torch.special.entr(A).sum(-1)[..., 1:]
    return (nats / torch.arange(2, A.size(-1) + 1).log()).mean(-1)


def entropy_nats(A: Tensor) -> Tensor:
    """The same before it is normalized: the mean of H(q) over q >= 1."""
    return torch.special.entr(A).sum(-1)[..., 1:].mean(-1)


def previous_token(A: Tensor) -> Tensor:
    return A.diagonal(-1, -2, -1).mean(-1)


def own_position(A: Tensor) -> Tensor:
    return A.diagonal(0, -2, -1)[..., 1:].mean(-1)


def first_token(A: Tensor) -> Tensor:
    return A[..., 1:, 0].mean(-1)


def mean_distance(A: Tensor) -> Tensor:
    place = torch.arange(A.size(-1), dtype=A.dtype)
    back = (place[:, None] - place).clamp(min=0)
    return (A * back).sum((-2, -1)) / A.sum((-2, -1))


def induction(A: Tensor) -> Tensor:
    """To the token after the previous copy of this one. A pattern is not yet copying."""
    P = A.size(-1) // 2
    return A.diagonal(1 - P, -2, -1)[..., 1 : P + 1].mean(-1)


def duplicate_token(A: Tensor) -> Tensor:
    """To the previous copy of this token."""
    P = A.size(-1) // 2
    return A.diagonal(-P, -2, -1)[..., :P].mean(-1)


@dataclass(frozen=True)
class Score:
    """A score, and what a table says of it."""

    measure: Callable[[Tensor], Tensor]
    formula: str
    source: str
    repeats: bool = False
    """Measured on [r, r], r of P different random tokens, instead of on text."""

    @property
    def key(self) -> str:
        return self.measure.__name__

    @property
    def name(self) -> str:
        return self.key.replace("_", " ")

    def uniform(self, T: int) -> float:
        """Of uniform causal attention over T positions."""
        return float(self.measure(uniform_attention(T)))


# fmt: off
SCORES = [
    Score(entropy, "-sum_k A ln A / ln(q + 1), mean over q >= 1", "Shannon 1948"),
    Score(entropy_nats, "-sum_k A ln A, mean over q >= 1", "Shannon 1948"),
    Score(previous_token, "A[q, q-1], mean over q >= 1", "Olsson et al. 2022"),
    Score(own_position, "A[q, q], mean over q >= 1", "Clark et al. 2019"),
    Score(first_token, f"A[q, 0], mean over q >= 1; a sink above {SINK}", "Gu et al. 2024"),
    Score(mean_distance, "sum A (q - k) / sum A, positions", "Vig & Belinkov 2019"),
    Score(induction, "on [r, r]: A[q, q-P+1], mean over q = P .. 2P-1", "Olsson et al. 2022", True),
    Score(duplicate_token, "on [r, r]: A[q, q-P], mean over q = P .. 2P-1", "Wang et al. 2022",
          True),
]
# fmt: on
