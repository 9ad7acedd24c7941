"""Pack weights for the page: in half precision, or in 8 bits with one scale per row."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor


def pack_weights(
    weights: Mapping[str, Tensor], eight_bits: bool
) -> tuple[bytes, dict[str, Tensor]]:
    """Return the bytes of all tensors in order, little-endian, and the tensors they represent.

    A vector counts as one row. A tensor begins with one bit per row, lowest first, which is 0 for a
    row of zeros, as most rows of an n-gram table are. The other rows follow. Half precision takes
    two bytes per number. In 8 bits, the scales of the rows come first, in float32, then a signed
    byte per number, to be multiplied by the scale; vectors stay in half precision.
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
