"""Weights as they lie in the page: in half precision, or in 8 bits with a scale a row."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor


def pack_weights(
    weights: Mapping[str, Tensor], eight_bits: bool
) -> tuple[bytes, dict[str, Tensor]]:
    """The bytes of all tensors in their order, little-endian, and the tensors they stand for.

    Of each tensor, a vector being one row: a bit a row, lowest first, which says whether the row
    has anything but zeros (most rows of an n-gram table have not), and then the rows that have.
    Half precision takes two bytes a number. In 8 bits come the rows' scales, in float32, and then
    a signed byte a number, which times its scale is the number; vectors stay in half precision.
    """
    parts, stand_for = [], {}
    for name, weight in weights.items():
        rows = weight.detach().float().reshape(-1, weight.size(-1)).numpy()
        there = rows.any(axis=1)
        kept = rows[there]
        parts.append(np.packbits(there, bitorder="little").tobytes())
        if eight_bits and weight.dim() == 2:
            largest = np.abs(kept).max(axis=1, keepdims=True)
            scales = np.maximum(largest / np.float32(127), np.finfo(np.float32).tiny)
            whole = np.rint(kept / scales).astype(np.int8)
            parts += [scales.astype("<f4").tobytes(), whole.tobytes()]
            rounded = whole * scales
        else:
            half = np.finfo(np.float16)
            whole = kept.clip(half.min, half.max).astype("<f2")
            parts.append(whole.tobytes())
            rounded = whole.astype(np.float32)
        rows = np.zeros_like(rows)
        rows[there] = rounded
        stand_for[name] = torch.from_numpy(rows).reshape(weight.shape)
    return b"".join(parts), stand_for
