"""Attention on a CPU in bfloat16 or with dropout, faster than PyTorch's fused kernel. It stores the
(B, H, T, S) weights, as PyTorch's kernel does only with dropout."""

import math

import torch
from torch import Tensor

from model.fast.dropout import dropout


def attention(
    q_BHTD: Tensor,
    k_BHSD: Tensor,
    v_BHSD: Tensor,
    mask: Tensor | None = None,
    dropout_p: float = 0.0,
) -> Tensor:
    """`model.attention.attention`, with the scale and the mask in the first matmul.

    Args:
        mask: boolean, broadcastable to (T, S); each query may attend to at least one key.
    """
    B, T, S = q_BHTD.size(0), q_BHTD.size(2), k_BHSD.size(2)
    q, k, v = (x.flatten(0, 1) for x in (q_BHTD, k_BHSD, v_BHSD))  # bmm has one batch dimension
    # The gradient of a transposed matrix is transposed. The backward of `chunk` copies it in order,
    # so that what follows, such as rotary positions, is faster: 3% of a step of the default.
    (k,) = k.chunk(1)
    added_TS = q.new_zeros(T, S)  # -inf hides, 0 does not
    if mask is not None:
        added_TS = added_TS.masked_fill(~mask, -math.inf)
    scale = q.size(-1) ** -0.5
    weights = torch.baddbmm(added_TS, q, k.transpose(1, 2), alpha=scale).softmax(dim=-1)
    z = dropout(weights, dropout_p) @ v
    return z.unflatten(0, (B, -1))
