"""Dropout (Srivastava et al. 2014), from cheaper random numbers than PyTorch's on a CPU."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def drop(x: Tensor, share: float) -> Tensor:
    """Set each element to zero with probability `share`; scale the rest up to make up for it.

    On a CPU four elements share one 64-bit random number, sixteen bits each, so `share` is met to
    1 in 65,536; PyTorch draws one number for each element, which takes four times as long.
    """
    if share == 0.0:
        return x
    if x.device.type != "cpu":
        return F.dropout(x, share)
    dropped = min(round(share * 2**16), 2**16 - 1)
    bits = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    keep = bits.view(torch.int16)[: x.numel()].view(x.shape) >= dropped - 2**15
    return x * keep.to(x.dtype).mul_(2**16 / (2**16 - dropped))


class Dropout(nn.Module):
    """`drop` while training, nothing otherwise."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        """The same shape."""
        return drop(x, self.share) if self.training else x
