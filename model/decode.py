"""A model that only decodes, made faster: it multiplies matrices by a few rows at a time, so that
what takes the time is reading the weights, and calling."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model.attention import MultiHeadAttention
from model.cache import KVCache
from model.gpt import GPT

PARTS = 4  # enough for as many threads; more did not help


class SplitLinear(nn.Module):
    """x W^T + b, up to rounding: the outputs in parts, one batched product of all parts.

    With two threads on a CPU it is nearly three times as fast for one row, because PyTorch reads
    a matrix for a single row on one thread.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.outputs, inputs = linear.weight.shape
        self.parts = next(n for n in range(PARTS, 0, -1) if self.outputs % n == 0)
        parts = linear.weight.detach().view(self.parts, -1, inputs)
        self.weight = parts.transpose(1, 2).contiguous()
        bias = linear.bias
        self.bias = None if bias is None else bias.detach().view(self.parts, 1, -1)

    def forward(self, x: Tensor) -> Tensor:
        """(..., inputs) -> (..., outputs)."""
        rows = x.reshape(-1, x.size(-1)).expand(self.parts, -1, -1)
        if self.bias is None:
            y = torch.bmm(rows, self.weight)
        else:
            y = torch.baddbmm(self.bias, rows, self.weight)
        return y.transpose(0, 1).reshape(*x.shape[:-1], self.outputs)


class Int8Linear(nn.Module):
    """x W^T + b in bfloat16, W rounded to 8-bit integers times a scale for each output.

    A weight is off by at most half of 1/127 of the largest of its row. It takes a quarter of
    float32's memory, and of the time to read it.
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


class DecodingAttention(nn.Module):
    """`MultiHeadAttention`, causal, up to rounding, in a third fewer calls.

    Queries, keys and values are one product; queries and keys are normalized and rotated together,
    the scales of their norms being part of the cosines and sines.
    """

    def __init__(self, attention: MultiHeadAttention, block_size: int) -> None:
        super().__init__()
        self.n_head, self.attend, self.out = attention.n_head, attention.attend, attention.out
        layers = (attention.query, attention.key, attention.value)
        C, bias = attention.out.in_features, attention.out.bias is not None
        self.joint: nn.Module = nn.Linear(C, 3 * C, bias, device="meta")
        weights = {
            name: torch.cat([layer.get_parameter(name).detach() for layer in layers])
            for name in self.joint.state_dict()
        }
        self.joint.load_state_dict(weights, assign=True)

        norms, rotary = (attention.q_norm, attention.k_norm), attention.rotary
        scales = [norm.weight.detach() for norm in norms if isinstance(norm, nn.LayerNorm)]
        self.normed, self.rotated = bool(scales), bool(scales) or rotary is not None
        like, D = weights["weight"], C // self.n_head
        scale = torch.stack(scales or [like.new_ones(D)] * 2).view(2, 1, 1, 1, D)
        cos_TD = like.new_ones(block_size, D) if rotary is None else rotary.cos
        sin_TD = like.new_zeros(block_size, D) if rotary is None else rotary.sin
        self.cos, self.sin = scale * cos_TD, scale.roll(D // 2, -1) * sin_TD

    def forward(self, x_BTC: Tensor, *, causal: bool, cache: KVCache | None = None) -> Tensor:
        """(B, T, C) -> (B, T, C), see `MultiHeadAttention.forward`."""
        B, T, C = x_BTC.shape
        D = C // self.n_head
        heads = self.joint(x_BTC).view(B, T, 3, self.n_head, D).permute(2, 0, 3, 1, 4)
        qk, v_BHSD = heads[:2], heads[2]  # (2, B, H, T, D)
        if self.normed:
            qk = F.layer_norm(qk, (D,))
        if self.rotated:
            start = cache.length if cache is not None else 0
            cos, sin = (table[..., start : start + T, :] for table in (self.cos, self.sin))
            qk = torch.addcmul(qk * cos, qk.roll(D // 2, -1), sin)
        q_BHTD, k_BHSD = qk
        if cache is not None:
            k_BHSD, v_BHSD = cache.append(k_BHSD, v_BHSD)
        z_BHTD = self.attend(q_BHTD, k_BHSD, v_BHSD, None, causal)
        return self.out(z_BHTD.transpose(1, 2).flatten(2))


def optimize_for_decoding(model: GPT, int8: bool = False) -> GPT:
    """Replace attention and linear layers of a model that will only decode; return the model.

    Args:
        int8: round the weights to 8 bits and compute in bfloat16, which changes the numbers.
            Otherwise they stay the same up to rounding, and on a GPU linear layers stay.
    """
    if int8:
        model.bfloat16()
    replace(model, MultiHeadAttention, lambda a: DecodingAttention(a, model.config.block_size))
    if int8:
        replace(model, nn.Linear, Int8Linear)
    elif model.token_embedding.weight.device.type == "cpu":
        replace(model, nn.Linear, SplitLinear)
    return model


def replace(model: GPT, kind: type[nn.Module], make: Callable[[Any], nn.Module]) -> None:
    """Replace each layer of a kind by what `make` makes of it."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, kind):
                setattr(module, name, make(child))
