"""Composition: how much a head reads from what an earlier head wrote (Elhage et al. 2021, "A
Mathematical Framework for Transformer Circuits").

Let M = W_O W_V be what the earlier head writes into the residual stream, and R what the later head
reads. The score is |R M| / (|R| |M|), in Frobenius norms: for Q-composition, R = W_Q^T W_K on the
side of the query; for K-composition, on the side of the key; for V-composition, R = W_O W_V of the
later head. For a random M, whose columns point in random directions, the root mean square of the
score is 1 / sqrt(C) for any R.

The score uses only the weights, including the weights of the norms. It ignores rotary positions,
QK-norm and the MLPs between the heads.

Induction from weights asks what such a pair does with tokens: if the earlier head copied the token
b into a position, how well does the query of the token a match the key there? This is a table of a
and b,

    q_a k_b  with  q_a = W_Q n(E_a)  and  k_b = W_K n(W_O W_V n(E_b)),

where E are the token embeddings and n is the norm that each layer reads through. In an induction
head, the largest entry of a row is its own token. The table ignores the same parts as the score.
"""

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from lens.capture import blocks_of
from lens.formula import by_head
from model.gpt import GPT, Block

ENTRIES_AT_ONCE = 2**22  # of the tables of a layer, at most, if a row is not longer
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


@torch.no_grad()
def induction_from_weights(model: GPT) -> Iterator[tuple[Head, Head, float]]:
    """Yield every pair of heads in different layers, the earlier one first, with the fraction of
    tokens whose best key is their own: that of the position into which the earlier head copied the
    same token."""
    E_1VC, blocks = model.token_embedding.weight[None], blocks_of(model)
    V, H = E_1VC.size(1), model.config.n_head

    def heads(block: Block, layer: nn.Linear, x_1VC: Tensor) -> Tensor:
        """Return what each head of a block reads of x, (H, V, D)."""
        attn = block.attn
        return attn.for_each_query(attn.split_heads(layer(block.attn_norm(x_1VC))))[0]

    for i, j in itertools.combinations(range(len(blocks)), 2):
        earlier, later = blocks[i], blocks[j]
        v_HVD = heads(earlier, earlier.attn.value, E_1VC)
        q_HVD = heads(later, later.attn.query, E_1VC)
        W_HDC = earlier.attn.out.weight.T.unflatten(0, (H, -1))
        for a in range(H):
            k_HVD, own_HV = heads(later, later.attn.key, (v_HVD[a] @ W_HDC[a])[None]), []
            for rows in torch.arange(V).split(max(1, ENTRIES_AT_ONCE // (H * V))):
                table_HnV = q_HVD[:, rows] @ k_HVD.mT
                own_HV.append(table_HnV.argmax(-1) == rows)
            for b, share in enumerate(torch.cat(own_HV, 1).double().mean(1).tolist()):
                yield (i, a), (j, b), share
