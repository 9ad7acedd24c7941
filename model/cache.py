"""What a model keeps of the positions it has read, so that decoding does not compute them again."""

import torch
from torch import Tensor


class KVCache:
    """Keys and values of one layer, in buffers of a fixed size."""

    k_BHSD: Tensor
    v_BHSD: Tensor

    def __init__(self, block_size: int) -> None:
        self.block_size, self.length = block_size, 0

    def append(self, k_BHTD: Tensor, v_BHTD: Tensor) -> tuple[Tensor, Tensor]:
        """Add T positions; return the keys and values of all so far, each (B, H, length, D)."""
        B, H, T, D = k_BHTD.shape
        if self.length == 0:
            self.k_BHSD = k_BHTD.new_empty(B, H, self.block_size, D)
            self.v_BHSD = torch.empty_like(self.k_BHSD)
        start, self.length = self.length, self.length + T
        self.k_BHSD[:, :, start : self.length] = k_BHTD
        self.v_BHSD[:, :, start : self.length] = v_BHTD
        return self.k_BHSD[:, :, : self.length], self.v_BHSD[:, :, : self.length]


class Cache:
    """Keys and values of all layers, and the tokens that the next n-grams begin with."""

    recent_BN: Tensor

    def __init__(self, n_layer: int, block_size: int) -> None:
        self.layers = [KVCache(block_size) for _ in range(n_layer)]

    @property
    def length(self) -> int:
        """Positions read."""
        return self.layers[0].length
