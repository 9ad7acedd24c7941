"""How much a head reads what a head of a layer below wrote: composition (Elhage et al. 2021, "A
Mathematical Framework for Transformer Circuits").

With M = W_O W_V what the earlier head writes into the residual stream and R what the later head
reads from there, the score is |R M| / (|R| |M|), in Frobenius norms: Q-composition with
R = W_Q^T W_K read on the side of the query, K-composition on the side of the key, V-composition
with R = W_O W_V of the later head. `random_score` is that of random matrices of those shapes.

It is about the weights alone: the weights of the norms are multiplied in, but rotary positions,
QK-norm and the MLPs between the heads are left out.
"""

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor

from lens.capture import blocks_of
from model.gpt import GPT, Block

KINDS = ("Q", "K", "V")
DRAWS = 64  # random pairs of heads that `random_score` is a mean over

Head = tuple[int, int]  # layer and head
Product = tuple[Tensor, Tensor]  # left^T right, (C, C) of rank D, kept as its (D, C) factors


def norm(left: Tensor, middle: Tensor, right: Tensor) -> float:
    """|left^T middle right|, by way of (D, D) matrices alone."""
    squares = (left @ left.T @ middle) * (middle @ right @ right.T)
    return float(squares.sum().clamp(min=0).sqrt())


def composition_score(reads: Product, writes: Product) -> float:
    """|R M| / (|R| |M|); 0 if one of them is 0."""
    identity = torch.eye(len(reads[0]), dtype=reads[0].dtype)
    both = norm(reads[0], reads[1] @ writes[0].T, writes[1])
    apart = norm(reads[0], identity, reads[1]) * norm(writes[0], identity, writes[1])
    return both / max(apart, torch.finfo(torch.float64).tiny)


@torch.no_grad()
def composition(model: GPT) -> Iterator[tuple[Head, Head, dict[str, float]]]:
    """Score every pair of heads in different layers: the earlier, the later, a score per kind."""
    layers = [circuits_of(block) for block in blocks_of(model)]
    for i, j in itertools.combinations(range(len(layers)), 2):
        for a, earlier in enumerate(layers[i]):
            for b, later in enumerate(layers[j]):
                scores = {kind: composition_score(later[kind], earlier["V"]) for kind in KINDS}
                yield (i, a), (j, b), scores


def circuits_of(block: Block) -> list[dict[str, Product]]:
    """Return what each head reads, by kind; what it reads as a value is what it writes.

    Each matrix is divided by its norm, which changes no score: weights may be of any size.
    """
    attn, weight = block.attn, getattr(block.attn_norm, "weight", None)
    weight_C = torch.ones(()) if weight is None else weight.double()
    matrices = [layer.weight.double() * weight_C for layer in (attn.query, attn.key, attn.value)]
    matrices.append(attn.out.weight.double().T)
    factors = [W / W.norm().clamp(min=1e-30) for W in matrices]
    heads = [W.unflatten(0, (attn.n_head, -1)) for W in factors]
    return [{"Q": (k, q), "K": (q, k), "V": (o, v)} for q, k, v, o in zip(*heads, strict=True)]


def random_score(C: int, D: int) -> float:
    """Return the score of random matrices, which is the same for the three kinds."""
    generator = torch.Generator().manual_seed(0)
    total = 0.0
    for _ in range(DRAWS):
        a, b, c, d = torch.randn(4, D, C, dtype=torch.float64, generator=generator)
        total += composition_score((a, b), (c, d))
    return total / DRAWS
