"""A model laid out for decoding: a product there has few rows, so that its time is that of reading
the weights and of calling it."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model.attention import KVCache, MultiHeadAttention
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


class DecodingAttention(nn.Module):
    """`MultiHeadAttention` of a model that only decodes, in a third fewer operations.

    Where a product takes microseconds, so does calling it. Queries, keys and values are one
    product here; queries and keys are normalised and turned together, and the gains of their norms
    are part of the cosines and sines. The same numbers up to rounding.
    """

    def __init__(self, attention: MultiHeadAttention, block_size: int) -> None:
        super().__init__()
        self.n_head, self.attend, self.out = attention.n_head, attention.attend, attention.out
        three = [layer.state_dict() for layer in (attention.query, attention.key, attention.value)]
        C = self.out.in_features
        self.joint: nn.Module = nn.Linear(C, 3 * C, "bias" in three[0], device="meta")
        joined = {name: torch.cat([layer[name] for layer in three]) for name in three[0]}
        self.joint.load_state_dict(joined, assign=True)

        norms, rotary = (attention.q_norm, attention.k_norm), attention.rotary
        like, D = joined["weight"], C // self.n_head
        gains = [norm.weight.detach() for norm in norms if isinstance(norm, nn.LayerNorm)]
        self.normed, self.turned = bool(gains), bool(gains) or rotary is not None
        gain = torch.stack(gains or [like.new_ones(D)] * 2).view(2, 1, 1, 1, D)
        cos_TD = like.new_ones(block_size, D) if rotary is None else rotary.cos
        sin_TD = like.new_zeros(block_size, D) if rotary is None else rotary.sin
        self.cos, self.sin = gain * cos_TD, gain.roll(D // 2, -1) * sin_TD

    def forward(self, x_BTC: Tensor, *, causal: bool, cache: KVCache | None = None) -> Tensor:
        """(B, T, C) -> (B, T, C), see `MultiHeadAttention.forward`."""
        B, T, C = x_BTC.shape
        D = C // self.n_head
        heads = self.joint(x_BTC).view(B, T, 3, self.n_head, D).permute(2, 0, 3, 1, 4)
        qk, v_BHSD = heads[:2], heads[2]  # (2, B, H, T, D)
        if self.normed:
            qk = F.layer_norm(qk, (D,))
        if self.turned:
            start = cache.length if cache is not None else 0
            cos, sin = (table[..., start : start + T, :] for table in (self.cos, self.sin))
            qk = torch.addcmul(qk * cos, qk.roll(D // 2, -1), sin)
        q_BHTD, k_BHSD = qk
        if cache is not None:
            k_BHSD, v_BHSD = cache.append(k_BHSD, v_BHSD)
        z_BHTD = self.attend(q_BHTD, k_BHSD, v_BHSD, None, causal)
        return self.out(z_BHTD.transpose(1, 2).reshape(B, T, C))


def lay_out_for_decoding(model: GPT, int8: bool = False) -> GPT:
    """Replace the linear layers of a model that will only decode; return the model.

    Args:
        int8: round the weights to 8 bits and compute in bfloat16, which changes the numbers;
            otherwise they stay the same up to rounding, and on a GPU linear layers stay.
    """
    if int8:
        model.bfloat16()
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, MultiHeadAttention):
                setattr(module, name, DecodingAttention(child, model.config.block_size))
    if not int8 and model.token_embedding.weight.device.type != "cpu":
        return model
    kind = Int8Linear if int8 else PiecewiseLinear
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Linear):
                setattr(module, name, kind(child))
    return model
