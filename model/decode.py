"""Weights laid out for decoding, where a product has few rows and its time is that of reading
the weights."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model.gpt import GPT

PIECES = 4  # enough for as many threads; more did not help


class PiecewiseLinear(nn.Module):
    """A linear layer in pieces of its outputs, each stored as (inputs, outputs), read side by side.

    The same numbers as `nn.Linear` up to rounding. On a CPU with two threads it is nearly three
    times as fast for one row, because PyTorch reads a matrix for a single row on one thread.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.outputs, inputs = linear.weight.shape
        self.n = next(n for n in range(PIECES, 0, -1) if self.outputs % n == 0)
        pieces = linear.weight.detach().view(self.n, self.outputs // self.n, inputs)
        self.weight = pieces.transpose(1, 2).contiguous()
        bias = linear.bias
        self.bias = None if bias is None else bias.detach().view(self.n, 1, -1)

    def forward(self, x: Tensor) -> Tensor:
        """(..., inputs) -> (..., outputs)."""
        rows = x.reshape(-1, x.size(-1)).expand(self.n, -1, -1)
        if self.bias is None:
            pieces = torch.bmm(rows, self.weight)
        else:
            pieces = torch.baddbmm(self.bias, rows, self.weight)
        return pieces.transpose(0, 1).reshape(*x.shape[:-1], self.outputs)


class Int8Linear(nn.Module):
    """A linear layer of 8-bit whole numbers times a scale for each output; changes the numbers.

    A weight is off by at most half of 1/127 of the largest in its row. Inputs and sums are
    rounded to bfloat16. A quarter of the memory, and of the time to read it.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach().float()
        scale = weight.abs().amax(dim=1).clamp(min=1e-12) / 127
        # The kernel reads inputs sixteen at a time, past the end of a row if need be.
        self.padding = -weight.size(1) % 16
        rounded = (weight / scale[:, None]).round().to(torch.int8)
        self.weight = F.pad(rounded, (0, self.padding)).contiguous()
        self.scale = scale.bfloat16()
        self.bias = None if linear.bias is None else linear.bias.detach().bfloat16()

    def forward(self, x: Tensor) -> Tensor:
        """(..., inputs) -> (..., outputs), of bfloat16."""
        rows = F.pad(x.reshape(-1, x.size(-1)), (0, self.padding)).contiguous()
        y = torch._weight_int8pack_mm(rows, self.weight, self.scale)
        y = y if self.bias is None else y + self.bias
        return y.view(*x.shape[:-1], -1)


def lay_out_for_decoding(model: GPT, int8: bool = False) -> GPT:
    """Replace the linear layers of a model that will only decode; return the model.

    Args:
        int8: round the weights to 8 bits and compute in bfloat16, which changes the numbers;
            otherwise they stay the same up to rounding, and on a GPU the layers stay as they are.
    """
    if int8:
        model.bfloat16()
    elif model.token_embedding.weight.device.type != "cpu":
        return model
    kind = Int8Linear if int8 else PiecewiseLinear
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Linear):
                setattr(module, name, kind(child))
    return model
