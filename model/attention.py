"""Linear layers and norms; attention (Vaswani et al. 2017, section 3.2): the formula, and
multi-head attention.

Letters, here and everywhere: B batch, T query positions, S key positions, C model width,
H heads, D = C / H head width, V vocabulary.

In every mask, True means *may attend*, as in PyTorch's `scaled_dot_product_attention`. (In
`torch.nn.MultiheadAttention`, True means hidden.)
"""

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from configs.config import Kernel
from model.fast import attention as fast


class Linear(nn.Linear):
    """x W^T + b. W and b are cast to the type of x, so that in bfloat16 the weights and their
    gradients stay float32. (torch.autocast would also keep norms and softmax in float32.)"""

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        return F.linear(x, cast(self.weight, x), cast(self.bias, x))


class LayerNorm(nn.LayerNorm):
    """(x - mean) / sqrt(variance + eps) * w + b (Ba et al. 2016), w and b cast to the type of x."""

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        return F.layer_norm(
            x, self.normalized_shape, cast(self.weight, x), cast(self.bias, x), self.eps
        )


def cast(weight: Tensor | None, x: Tensor) -> Any:
    """Return a weight in the type of x, or None if there is none."""
    return None if weight is None else weight.to(x.dtype)


def attention_weights(q_BHTD: Tensor, k_BHSD: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute softmax(Q K^T / sqrt(D)), how much each query attends to each key.

    Args:
        mask: boolean, broadcastable to (B, H, T, S); True may attend. If a query may attend to no
            key, its weights are zero.

    Returns:
        (B, H, T, S); each row sums to 1.
    """
    scores_BHTS = q_BHTD @ k_BHSD.mT / math.sqrt(q_BHTD.size(-1))
    if mask is None:
        return scores_BHTS.softmax(dim=-1)
    weights_BHTS = scores_BHTS.masked_fill(~mask, -math.inf).softmax(dim=-1)
    return weights_BHTS.masked_fill(~mask, 0.0)  # the softmax of a row of -inf alone is NaN


def attention(
    q_BHTD: Tensor,
    k_BHSD: Tensor,
    v_BHSD: Tensor,
    mask: Tensor | None = None,
    dropout_p: float = 0.0,
) -> Tensor:
    """Compute softmax(Q K^T / sqrt(D)) V (Vaswani et al. 2017, equation 1), (B, H, T, D).

    Args:
        mask: see `attention_weights`.
        dropout_p: probability of dropping a weight.
    """
    weights_BHTS = attention_weights(q_BHTD, k_BHSD, mask)
    return F.dropout(weights_BHTS, dropout_p) @ v_BHSD


def causal_mask(T: int, S: int, window: int = 0, device: torch.device | None = None) -> Tensor:
    """Return the mask (T, S) that is True where query t may attend to key s.

    A position attends to itself and to earlier positions, `window` in all, or all if it is 0. The T
    queries are the last of the S positions, as in decoding with a cache.
    """
    mask_TS = torch.ones(T, S, dtype=torch.bool, device=device).tril_(diagonal=S - T)
    return mask_TS.triu_(diagonal=S - T - window + 1) if window else mask_TS


class Attend(nn.Module):
    """`attention` with PyTorch's "fused" kernel or with the "explicit" formula, which agree up to
    rounding. In bfloat16 or with dropout on a CPU, the fused kernel is `fast.attention`.

    This is a module, so that with any kernel a forward hook can read the queries, keys, values and
    mask, and replace the output (see `lens/capture.py`).
    """

    def __init__(self, kernel: Kernel, dropout_p: float, window: int = 0) -> None:
        super().__init__()
        self.kernel, self.dropout_p, self.window = kernel, dropout_p, window

    def forward(
        self, q_BHTD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor, mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        """Return (B, H, T, D). If `is_causal`, the mask is `causal_mask` of T queries and T keys,
        for which there are faster kernels."""
        p = self.dropout_p if self.training else 0.0
        if self.kernel == "explicit":
            return attention(q_BHTD, k_BHSD, v_BHSD, mask, p)
        # There, PyTorch's kernel makes a step of the default 1.3 to 1.8 times as slow in bfloat16.
        if is_causal and q_BHTD.device.type == "cpu" and (q_BHTD.dtype == torch.bfloat16 or p > 0):
            return fast.attention(q_BHTD, k_BHSD, v_BHSD, mask, p)
        is_causal = is_causal and not self.window  # which PyTorch's kernel does not know
        return F.scaled_dot_product_attention(
            q_BHTD, k_BHSD, v_BHSD, None if is_causal else mask, p, is_causal
        )


class Rotary(nn.Module):
    """Rotary position encoding: rotates pairs of channels by angles proportional to the position.

    The dot product of a rotated query and a rotated key depends on their positions only through the
    offset between them (Su et al. 2021, RoFormer). Channel i is paired with i + D / 2, as in
    GPT-NeoX.
    """

    def __init__(self, head_width: int, block_size: int) -> None:
        super().__init__()
        frequencies = 10_000 ** (-torch.arange(0, head_width, 2, dtype=torch.float64) / head_width)
        # A rotation is x1 cos - x2 sin and x2 cos + x1 sin: the first half of the channels turns by
        # the negative angle, whose cosine is the same and whose sine has the minus sign.
        positions = torch.arange(block_size).double()
        angles_TD = torch.outer(positions, torch.cat((-frequencies, frequencies)))
        self.cos_TD = nn.Buffer(angles_TD.cos().float(), persistent=False)
        self.sin_TD = nn.Buffer(angles_TD.sin().float(), persistent=False)

    def forward(self, x_BHTD: Tensor, start: int) -> Tensor:
        """Rotate (B, H, T, D), whose first row is at position `start`."""
        end = start + x_BHTD.size(-2)
        cos_TD, sin_TD = (each[start:end].to(x_BHTD) for each in (self.cos_TD, self.sin_TD))
        other_half = x_BHTD.roll(x_BHTD.size(-1) // 2, dims=-1)
        return torch.addcmul(x_BHTD * cos_TD, other_half, sin_TD)


class KVCache:
    """The keys and values of one layer at the positions so far, which decoding reuses.

    They are written in place, so gradients of a pass are lost when the next one appends.
    """

    length = 0

    def __init__(self, size: int) -> None:
        """
        Args:
            size: number of positions for which memory is allocated, when the first are appended.
        """
        self.size = size

    def append(self, k_BHTD: Tensor, v_BHTD: Tensor) -> tuple[Tensor, ...]:
        """Append T positions; return views of all keys and values so far, (B, H, length, D)."""
        B, H, T, D = k_BHTD.shape
        if self.length == 0:
            self.kv_2BHSD = k_BHTD.new_empty(2, B, H, self.size, D)
        self.length += T
        kv_2BHSD = self.kv_2BHSD[..., : self.length, :]
        kv_2BHSD[..., -T:, :] = torch.stack((k_BHTD, v_BHTD))
        return kv_2BHSD.unbind()


class Cache:
    """The state of decoding: the tokens so far, and a `KVCache` for each layer."""

    tokens_BT: Tensor | None = None

    def __init__(self, n_layer: int, size: int) -> None:
        self.layers = [KVCache(size) for _ in range(n_layer)]

    @property
    def length(self) -> int:
        """The number of positions so far."""
        return 0 if self.tokens_BT is None else self.tokens_BT.size(1)

    def append(self, tokens_BT: Tensor) -> Tensor:
        """Append the next tokens; return all tokens so far."""
        if self.tokens_BT is not None:
            tokens_BT = torch.cat((self.tokens_BT, tokens_BT), dim=1)
        self.tokens_BT = tokens_BT
        return tokens_BT


class MultiHeadAttention(nn.Module):
    """Multi-head attention (Vaswani et al. 2017, section 3.2.2): self, causal or cross.

    Queries, keys and values are projected C -> C and split into H heads of width D. Each head
    attends separately. Then the heads are concatenated and projected by `out`. Head h uses rows
    h * D to (h + 1) * D of the `query`, `key` and `value` weights, and the same columns of `out`.

    With fewer heads of keys and values (Shazeer 2019; Ainslie et al. 2023), each serves a group of
    H / G consecutive heads of queries, where G is their number, and decoding caches less.
    """

    def __init__(
        self,
        n_embd: int,
        n_head: int,
        n_kv_head: int | None = None,
        *,
        bias: bool = True,
        dropout: float = 0.0,
        kernel: Kernel = "fused",
        qk_norm: bool = False,
        rotary: Rotary | None = None,
        window: int = 0,
    ) -> None:
        """
        Args:
            n_head: a divisor of `n_embd`.
            n_kv_head: number of heads of keys and values, a divisor of `n_head`; None for n_head.
            dropout: probability of dropping an attention weight in training.
            kernel: see `Attend`.
            qk_norm: normalize the queries and keys of each head (Dehghani et al. 2023).
            rotary: rotates queries and keys by their positions; for self-attention only.
            window: see `causal_mask`; for causal attention only.
        """
        super().__init__()
        self.n_head, self.head_width = n_head, n_embd // n_head
        kv_width = (n_kv_head or n_head) * self.head_width
        self.query = Linear(n_embd, n_embd, bias)
        self.key = Linear(n_embd, kv_width, bias)
        self.value = Linear(n_embd, kv_width, bias)
        self.out = Linear(n_embd, n_embd, bias)
        norm = partial(LayerNorm, self.head_width, bias=False) if qk_norm else nn.Identity
        self.q_norm, self.k_norm = norm(), norm()
        self.rotary = rotary
        self.attend = Attend(kernel, dropout, window)

    def forward(
        self,
        x_BTC: Tensor,
        source_BSC: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        causal: bool = False,
        cache: KVCache | None = None,
    ) -> Tensor:
        """Let each position of `x` attend to `source`, or to `x` itself.

        Args:
            x_BTC: input of the queries.
            source_BSC: input of the keys and values in cross-attention, of any length.
            mask: boolean, (..., T, S) or (..., 1, S); True may attend.
            causal: let a position attend only to itself and to earlier positions. This, a cache and
                rotary positions require self-attention.
            cache: keys and values of earlier positions; the keys and values of `x` are appended.

        Returns:
            (B, T, C).

        Raises:
            ValueError: for a mask without a column for each key, cached keys included.
        """
        source_BSC = x_BTC if source_BSC is None else source_BSC
        q_BHTD = self.q_norm(self.split_heads(self.query(x_BTC)))
        k_BHSD = self.k_norm(self.split_heads(self.key(source_BSC)))
        v_BHSD = self.split_heads(self.value(source_BSC))
        start = cache.length if cache else 0
        if self.rotary:
            q_BHTD, k_BHSD = self.rotary(q_BHTD, start), self.rotary(k_BHSD, start)
        if cache:
            k_BHSD, v_BHSD = cache.append(k_BHSD, v_BHSD)
        k_BHSD, v_BHSD = self.for_each_query(k_BHSD), self.for_each_query(v_BHSD)
        # Not T == S, which in an exported graph may be a symbol instead of a bool.
        is_causal = causal and mask is None and start == 0
        T, S = q_BHTD.size(2), k_BHSD.size(2)
        if mask is not None and mask.size(-1) != S:  # a single column would apply to all keys
            raise ValueError(f"the mask has {mask.size(-1)} columns, but there are {S} keys")
        # A mask is made even for a kernel that does not read it, because hooks on `attend` do.
        # A single query is the last position: without a window, it may attend to all keys.
        if causal and (self.attend.window or T > 1):
            past_TS = causal_mask(T, S, self.attend.window, x_BTC.device)
            mask = past_TS if mask is None else mask & past_TS
        z_BHTD = self.attend(q_BHTD, k_BHSD, v_BHSD, mask, is_causal)
        return self.out(self.merge_heads(z_BHTD))

    def split_heads(self, x_BTC: Tensor) -> Tensor:
        """(B, T, C) -> (B, H, T, D), or (B, T, G D) -> (B, G, T, D)."""
        return x_BTC.unflatten(-1, (-1, self.head_width)).transpose(1, 2)

    def for_each_query(self, x_BGSD: Tensor) -> Tensor:
        """(B, G, S, D) -> (B, H, S, D): the keys or values that each head of queries reads."""
        group = self.n_head // x_BGSD.size(1)
        return x_BGSD if group == 1 else x_BGSD.repeat_interleave(group, dim=1)

    def merge_heads(self, z_BHTD: Tensor) -> Tensor:
        """(B, H, T, D) -> (B, T, C): concatenate the heads."""
        return z_BHTD.transpose(1, 2).flatten(2)
