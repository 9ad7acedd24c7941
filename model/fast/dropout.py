"""Dropout on a CPU, faster than PyTorch's."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Dropout(nn.Dropout):
    """`nn.Dropout`, with the `dropout` below."""

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        return dropout(x, self.p, self.training)


def dropout(x: Tensor, p: float, training: bool = True) -> Tensor:
    """`F.dropout`. On a CPU, `p` is rounded to 16 bits, and a random number of 64 bits serves four
    elements, because drawing them one at a time takes most of the time."""
    dropped = round(p * 2**16)
    if not training or not 0 < dropped < 2**16 or x.device.type != "cpu":
        return F.dropout(x, p, training)
    bits = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    keep = bits.view(torch.int16)[: x.numel()].view(x.shape).ge_(dropped - 2**15)
    return x * keep.to(x.dtype).mul_(2**16 / (2**16 - dropped))
