"""How much a head reads what a head of a layer below wrote: composition (Elhage et al. 2021, "A
Mathematical Framework for Transformer Circuits").

With M = W_O W_V what the earlier head writes into the residual stream and R what the later head
reads from there, the score is |R M| / (|R| |M|), in Frobenius norms: Q-composition with
R = W_Q^T W_K read on the side of the query, K-composition on the side of the key, V-composition
with R = W_O W_V of the later head. The chance level is the same of random matrices of those shapes.

Of the weights alone: the scales of the norms are multiplied in, but rotary positions, QK-norm and
what the MLPs between them do are left out.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from lens.capture import blocks_of
from model.gpt import GPT, Block

KINDS = ("Q", "K", "V")
DRAWS = 64  # random pairs of heads that the chance level is a mean over


@dataclass(frozen=True)
class Composition:
    """What a head does with what an earlier one wrote."""

    earlier: tuple[int, int]
    """Layer and head."""

    later: tuple[int, int]

    scores: dict[str, float]
    """By kind, from 0 to 1."""


@dataclass(frozen=True)
class Product:
    """left^T right, a (C, C) of rank D, kept as its (D, C) factors."""

    left: Tensor
    right: Tensor

    def norm(self, between: Tensor | None = None) -> float:
        """|left^T between right|, by way of (D, D) matrices alone."""
        middle = torch.eye(len(self.left), dtype=self.left.dtype) if between is None else between
        left, right = self.left @ self.left.T, self.right @ self.right.T
        return float(((left @ middle) * (middle @ right)).sum().clamp(min=0).sqrt())


def composition_score(reads: Product, writes: Product) -> float:
    """|R M| / (|R| |M|); 0 where one of them is 0."""
    between = reads.right @ writes.left.T
    both = Product(reads.left, writes.right).norm(between)
    return both / max(reads.norm() * writes.norm(), torch.finfo(torch.float64).tiny)


@torch.no_grad()
def composition(model: GPT) -> Iterator[Composition]:
    """Of every pair of heads in different layers."""
    layers = [circuits_of(block) for block in blocks_of(model)]
    for i, j in itertools.combinations(range(len(layers)), 2):
        for a, earlier in enumerate(layers[i]):
            for b, later in enumerate(layers[j]):
                scores = {kind: composition_score(later[kind], earlier["V"]) for kind in KINDS}
                yield Composition((i, a), (j, b), scores)


def circuits_of(block: Block) -> list[dict[str, Product]]:
    """What each head reads, by kind; what it reads as a value is what it writes."""
    attn = block.attn
    scale_C = block.attn_norm.get_parameter("weight").double()  # of the norm before the layer
    q_HDC, k_HDC, v_HDC = (
        (layer.weight.double() * scale_C).unflatten(0, (attn.n_head, -1))
        for layer in (attn.query, attn.key, attn.value)
    )
    o_HDC = attn.out.weight.double().T.unflatten(0, (attn.n_head, -1))
    return [
        {"Q": Product(k, q), "K": Product(q, k), "V": Product(o, v)}
        for q, k, v, o in zip(q_HDC, k_HDC, v_HDC, o_HDC, strict=True)
    ]


def chance_level(C: int, D: int) -> float:
    """The score of random matrices, which is the same for the three kinds."""
    generator = torch.Generator().manual_seed(0)
    total = 0.0
    for _ in range(DRAWS):
        a, b, c, d = torch.randn(4, D, C, dtype=torch.float64, generator=generator)
        total += composition_score(Product(a, b), Product(c, d))
    return total / DRAWS
