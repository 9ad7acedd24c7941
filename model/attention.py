"""Attention: the textbook formula, the module built on it, and the cache for decoding.

Letters, here and everywhere: B batch, T query positions, S key positions, C model width,
H heads, D = C / H head width, V vocabulary.

One polarity of masks, everywhere: True means *may attend*, as in PyTorch's
`scaled_dot_product_attention`. (`torch.nn.MultiheadAttention` has it the other way round.)
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model.kernels import drop


def attention(
    q_BHTD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor, mask: Tensor | None = None, dropout: float = 0.0
) -> tuple[Tensor, Tensor]:
    """softmax(Q K^T / sqrt(D)) V, step by step (Vaswani et al. 2017, equation 1).

    Args:
        mask: boolean, broadcastable to (B, H, T, S); True may attend. A query that may attend
            to nothing gets weights, and so an output, of zero.
        dropout: share of the weights set to zero, the rest scaled up to make up for it.

    Returns:
        The output (B, H, T, D) and the weights after the softmax, before dropout (B, H, T, S).
    """
    scores_BHTS = q_BHTD @ k_BHSD.transpose(-2, -1) / math.sqrt(q_BHTD.size(-1))
    if mask is not None:
        scores_BHTS = scores_BHTS.masked_fill(~mask, -math.inf)
    weights_BHTS = scores_BHTS.softmax(dim=-1)
    if mask is not None:  # a row of -inf alone has a softmax of NaN
        weights_BHTS = weights_BHTS.masked_fill(~mask, 0.0)
    return drop(weights_BHTS, dropout) @ v_BHSD, weights_BHTS


def causal_mask(T: int, S: int, device: torch.device | None = None) -> Tensor:
    """(T, S), True where query t may attend to key s: to itself and to what came before.

    The T queries are the last of the S positions, as when decoding with a cache.
    """
    return torch.ones(T, S, dtype=torch.bool, device=device).tril(diagonal=S - T)


class Attend(nn.Module):
    """The kernel: queries, keys, values and mask in, mixed values out.

    A module of its own so that a forward hook can see the very q, k, v and mask that the model
    used (see `lens/capture.py`), whichever kernel computes the output.
    """

    def __init__(self, kernel: str, dropout: float) -> None:
        super().__init__()
        self.kernel, self.dropout = kernel, dropout

    def forward(
        self, q_BHTD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor, mask: Tensor | None, causal: bool
    ) -> Tensor:
        """(B, H, T, D). `causal` hides what comes after a query, besides what `mask` hides."""
        dropout = self.dropout if self.training else 0.0
        if self.kernel == "explicit":
            full_mask = join_masks(q_BHTD, k_BHSD, mask, causal)
            return attention(q_BHTD, k_BHSD, v_BHSD, full_mask, dropout)[0]
        # `is_causal` aligns the mask top left: right only for as many keys as queries.
        is_causal = causal and mask is None and q_BHTD.size(-2) == k_BHSD.size(-2)
        if is_causal and q_BHTD.device.type == "cpu" and q_BHTD.dtype == torch.bfloat16:
            return batched_attention(q_BHTD, k_BHSD, v_BHSD, dropout)
        full_mask = None if is_causal else join_masks(q_BHTD, k_BHSD, mask, causal)
        return F.scaled_dot_product_attention(
            q_BHTD, k_BHSD, v_BHSD, attn_mask=full_mask, dropout_p=dropout, is_causal=is_causal
        )


def batched_attention(
    q_BHTD: Tensor, k_BHTD: Tensor, v_BHTD: Tensor, dropout: float = 0.0
) -> Tensor:
    """Causal attention as two batched products, scale and mask folded into the first.

    The same as `attention` with a causal mask. In bfloat16 on a CPU, forward and backward take
    a third of the time of the fused kernel, for the memory of the (B, H, T, T) weights.
    """
    B, H, T, D = q_BHTD.shape
    q, k, v = (x.reshape(B * H, T, D) for x in (q_BHTD, k_BHTD, v_BHTD))
    hidden = q.new_zeros(T, T).masked_fill_(~causal_mask(T, T, q.device), -math.inf)
    weights = torch.baddbmm(hidden, q, k.transpose(1, 2), alpha=D**-0.5).softmax(dim=-1)
    return (drop(weights, dropout) @ v).view(B, H, T, D)


def join_masks(q_BHTD: Tensor, k_BHSD: Tensor, mask: Tensor | None, causal: bool) -> Tensor | None:
    """The one mask that `mask` and `causal` amount to; None where nothing is hidden."""
    T, S = q_BHTD.size(-2), k_BHSD.size(-2)
    if not causal or T == 1:  # a single query is the last position: every key is its past
        return mask
    past = causal_mask(T, S, q_BHTD.device)
    return past if mask is None else mask & past


class Rotary(nn.Module):
    """Rotary positions: pairs of coordinates turned by an angle that grows with the position.

    The product of a turned query and a turned key depends on their distance alone
    (Su et al. 2021, "RoFormer"; the halves-paired layout of GPT-NeoX).
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, head_width: int, block_size: int, base: float = 10_000.0) -> None:
        super().__init__()
        frequencies = base ** (-torch.arange(0, head_width, 2, dtype=torch.float64) / head_width)
        angles = torch.outer(torch.arange(block_size, dtype=torch.float64), frequencies)
        cos_TD = torch.cat((angles.cos(), angles.cos()), dim=-1)
        sin_TD = torch.cat((-angles.sin(), angles.sin()), dim=-1)
        self.register_buffer("cos", cos_TD.float(), persistent=False)
        self.register_buffer("sin", sin_TD.float(), persistent=False)

    def forward(self, x_BHTD: Tensor, start: int) -> Tensor:
        """Turn (B, H, T, D), whose first row stands at position `start`."""
        rows = slice(start, start + x_BHTD.size(-2))
        cos_TD, sin_TD = self.cos[rows].to(x_BHTD.dtype), self.sin[rows].to(x_BHTD.dtype)
        other_half = x_BHTD.roll(x_BHTD.size(-1) // 2, dims=-1)
        return torch.addcmul(x_BHTD * cos_TD, other_half, sin_TD)


class KVCache:
    """Keys and values of the positions read so far, of one layer, in fixed buffers."""

    def __init__(
        self, batch_size: int, n_head: int, block_size: int, head_width: int, like: Tensor
    ) -> None:
        """Room for `block_size` positions, of the type and on the device of `like`."""
        shape = (batch_size, n_head, block_size, head_width)
        self.k_BHSD = like.new_zeros(shape)
        self.v_BHSD = like.new_zeros(shape)
        self.length = 0

    def append(self, k_BHTD: Tensor, v_BHTD: Tensor) -> tuple[Tensor, Tensor]:
        """Write T more positions; return all keys and values so far, each (B, H, length, D).

        Raises:
            ValueError: when they do not fit; the caller decides what to forget.
        """
        end = self.length + k_BHTD.size(-2)
        if end > self.k_BHSD.size(-2):
            raise ValueError(f"{end} positions do not fit a cache of {self.k_BHSD.size(-2)}")
        self.k_BHSD[:, :, self.length : end] = k_BHTD
        self.v_BHSD[:, :, self.length : end] = v_BHTD
        self.length = end
        return self.k_BHSD[:, :, :end], self.v_BHSD[:, :, :end]


class MultiHeadAttention(nn.Module):
    """Multi-head attention: self, causal or cross, by what it is called with.

    Three projections C -> C, split into H heads of width D; attention in each; the heads merged
    and projected once more (Vaswani et al. 2017, section 3.2.2). The weights of head h are rows
    h * D to (h + 1) * D of `query`, `key` and `value`, and those columns of `out`.
    """

    def __init__(
        self,
        n_embd: int,
        n_head: int,
        *,
        bias: bool = True,
        dropout: float = 0.0,
        kernel: str = "fused",
        qk_norm: bool = False,
        rotary: Rotary | None = None,
    ) -> None:
        """
        Args:
            dropout: of the attention weights, in training.
            kernel: "fused" or "explicit".
            rotary: turns queries and keys by their positions; for self-attention only.

        Raises:
            ValueError: when `n_embd` is not divisible by `n_head`.
        """
        super().__init__()
        if n_embd % n_head:
            raise ValueError(f"n_embd {n_embd} must be divisible by n_head {n_head}")
        self.n_head = n_head
        self.query = nn.Linear(n_embd, n_embd, bias)
        self.key = nn.Linear(n_embd, n_embd, bias)
        self.value = nn.Linear(n_embd, n_embd, bias)
        self.out = nn.Linear(n_embd, n_embd, bias)
        head_width = n_embd // n_head
        self.q_norm = nn.LayerNorm(head_width, bias=False) if qk_norm else nn.Identity()
        self.k_norm = nn.LayerNorm(head_width, bias=False) if qk_norm else nn.Identity()
        self.rotary = rotary
        self.attend = Attend(kernel, dropout)

    def split_heads(self, x_BTC: Tensor) -> Tensor:
        """(B, T, C) -> (B, H, T, D)."""
        B, T, C = x_BTC.shape
        return x_BTC.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)

    def merge_heads(self, z_BHTD: Tensor) -> Tensor:
        """(B, H, T, D) -> (B, T, C): the heads side by side."""
        B, H, T, D = z_BHTD.shape
        return z_BHTD.transpose(1, 2).reshape(B, T, H * D)

    def forward(
        self,
        x_BTC: Tensor,
        source_BSC: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        causal: bool = False,
        cache: KVCache | None = None,
    ) -> Tensor:
        """Let each position of `x` gather from `source`, or from `x` itself.

        Args:
            x_BTC: where the queries come from.
            source_BSC: where keys and values come from (cross-attention), of any length.
            mask: boolean, broadcastable to (B, H, T, S); True may attend.
            causal: a position may attend to itself and to earlier ones only.
            cache: keys and values of earlier positions; those of `x` are added to it.

        Returns:
            (B, T, C).

        Raises:
            ValueError: when `source` meets what only self-attention has: causality, rotary
                positions, or a cache.
        """
        if source_BSC is not None and (causal or cache is not None or self.rotary is not None):
            raise ValueError(
                "query and source positions of cross-attention have no common order: "
                "it takes no causal mask, no cache and no rotary positions"
            )
        memory_BSC = x_BTC if source_BSC is None else source_BSC
        layers = (self.query, self.key, self.value)
        if source_BSC is None and torch.is_grad_enabled():  # one product: a tenth of a small step
            bias = None if layers[0].bias is None else torch.cat([layer.bias for layer in layers])
            joint = F.linear(x_BTC, torch.cat([layer.weight for layer in layers]), bias)
            q_BTC, k_BSC, v_BSC = joint.chunk(3, dim=-1)
        else:
            q_BTC, k_BSC, v_BSC = self.query(x_BTC), self.key(memory_BSC), self.value(memory_BSC)
        q_BHTD = self.q_norm(self.split_heads(q_BTC))
        k_BHSD = self.k_norm(self.split_heads(k_BSC))
        v_BHSD = self.split_heads(v_BSC)
        if self.rotary is not None:
            start = cache.length if cache is not None else 0
            q_BHTD, k_BHSD = self.rotary(q_BHTD, start), self.rotary(k_BHSD, start)
        if cache is not None:
            k_BHSD, v_BHSD = cache.append(k_BHSD, v_BHSD)
        return self.out(self.merge_heads(self.attend(q_BHTD, k_BHSD, v_BHSD, mask, causal)))
