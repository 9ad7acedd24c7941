"""Composition: how much a head reads from what an earlier head wrote (Elhage et al. 2021, "A
Mathematical Framework for Transformer Circuits").

Let M = W_O W_V be what the earlier head writes into the residual stream, and R what the later head
reads. The score is |R M| / (|R| |M|), in Frobenius norms: for Q-composition, R = W_Q^T W_K on the
side of the query; for K-composition, on the side of the key; for V-composition, R = W_O W_V of the
later head. For a random M, whose columns point in random directions, the root mean square of the
score is 1 / sqrt(C) for any R.

The score uses only the weights, including the weights of the norms. It ignores rotary positions,
QK-norm and the MLPs between the heads.
"""

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor

from lens.capture import blocks_of
from lens.formula import by_head
from model.gpt import GPT, Block

Head = tuple[int, int]  # layer and head
Product = tuple[Tensor, Tensor]  # left^T right, (C, C) of rank D, kept as its (D, C) factors


def norm(left: Tensor, middle: Tensor, right: Tensor) -> Tensor:
    """Return |left^T middle right|, computed from (D, D) matrices only."""
    squares = (left @ left.T @ middle) * (middle @ right @ right.T)
    return squares.sum().clamp(min=0).sqrt()


def unit(left: Tensor, right: Tensor) -> Product:
    """Divide left^T right by its norm, which may be 0."""
    size = norm(left, torch.eye(len(left), dtype=left.dtype), right)
    return left / size.clamp(min=torch.finfo(left.dtype).tiny), right


@torch.no_grad()
def composition(model: GPT) -> Iterator[tuple[Head, Head, dict[str, float]]]:
    """Yield every pair of heads in different layers, the earlier one first, with their scores."""
    layers = [circuits_of(block) for block in blocks_of(model)]
    for i, j in itertools.combinations(range(len(layers)), 2):
        for a, earlier in enumerate(layers[i]):
            left, right = earlier["V"]
            for b, later in enumerate(layers[j]):
                scores = {kind: norm(x, y @ left.T, right).item() for kind, (x, y) in later.items()}
                yield (i, a), (j, b), scores


def circuits_of(block: Block) -> list[dict[str, Product]]:
    """Return the matrices of each head by kind; the V matrix is also what the head writes."""
    attn, weight = block.attn, getattr(block.attn_norm, "weight", None)
    weight_C = torch.ones(()) if weight is None else weight.double()
    matrices = [layer.weight.double() * weight_C for layer in (attn.query, attn.key, attn.value)]
    matrices.append(attn.out.weight.double().T)
    heads = [by_head(attn, W) for W in matrices]
    return [
        {"Q": unit(k, q), "K": unit(q, k), "V": unit(o, v)}
        for q, k, v, o in zip(*heads, strict=True)
    ]
